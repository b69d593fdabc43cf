use lazaret::declare::change_stream;

struct Orders;

#[change_stream(collection = "orders")]
impl Orders {
    #[on_insert]
    async fn placed(&self) {}

    #[on_updte]
    async fn updated(&self) {}
}

fn main() {}
