use lazaret::declare::change_stream;

struct Orders;

#[change_stream(collection = "orders")]
#[retry_policy(initial_delay = "5s", max_delay = "1s")]
impl Orders {
    #[on_insert]
    async fn placed(&self) {}
}

fn main() {}
