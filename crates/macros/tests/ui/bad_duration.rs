use lazaret::declare::change_stream;

struct Orders;

#[change_stream(collection = "orders")]
#[retry_policy(initial_delay = "500", max_delay = "soon")]
#[checkpoint(interval = "5 fortnights", idle_heartbeat = "30m 1h")]
impl Orders {
    #[on_insert]
    async fn placed(&self) {}
}

fn main() {}
