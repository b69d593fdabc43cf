use lazaret::declare::change_stream;

struct Orders;

#[change_stream(collection = "orders")]
#[retry_policy(max_attempts = 0)]
impl Orders {
    #[on_insert]
    async fn placed(&self) {}
}

fn main() {}
