use lazaret::declare::change_stream;

struct Orders;

#[change_stream(collection = "orders", collection = "refunds")]
#[retry_policy(max_attempts = 3)]
#[retry_policy(max_attempts = 4)]
impl Orders {
    #[on_insert]
    async fn placed(&self) {}
}

fn main() {}
