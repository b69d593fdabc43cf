use lazaret::declare::change_stream;

struct Orders;

#[change_stream(collection = "orders", pipeline = "[{ $match: {} }]")]
impl Orders {
    #[on_insert]
    async fn placed(&self) {}
}

struct Refunds;

#[change_stream(collection = "refunds", pipeline = r#"{ "$match": {} }"#)]
impl Refunds {
    #[on_insert]
    async fn placed(&self) {}
}

fn main() {}
