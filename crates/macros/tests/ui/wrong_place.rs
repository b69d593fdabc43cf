use lazaret::declare::*;

#[change_stream(collection = "orders")]
struct Orders;

#[retry_policy(max_attempts = 3)]
impl Orders {
    #[on_insert]
    async fn placed(&self) {}
}

struct Refunds;

#[change_stream(collection = "refunds")]
impl Refunds {
    #[on_insert]
    #[retry_policy(max_attempts = 3)]
    async fn placed(&self) {}
}

fn main() {}
