use lazaret::declare::change_stream;

struct Declined;

struct Orders;

#[change_stream(collection = "orders")]
#[retry_policy(no_retry_on(Declined))]
impl Orders {
    #[on_insert]
    async fn placed(&self) {}
}

fn main() {}
