use lazaret::declare::{change_stream, kafka_listener};

struct Orders;

#[change_stream(collection = "orders")]
#[restart_policy(max_atempts = 3, initial_delay = "0", multiplier = 0.5)]
impl Orders {
    #[on_insert]
    async fn placed(&self) {}
}

struct Refunds;

#[change_stream(collection = "refunds")]
#[restart_policy(max_attempts = -1, initial_delay = "5s", max_delay = "1s")]
impl Refunds {
    #[on_insert]
    async fn placed(&self) {}
}

struct Topics;

#[kafka_listener(topics = "orders")]
#[restart_policy(max_attempts = 3)]
impl Topics {
    #[on_message]
    async fn placed(&self) {}
}

fn main() {}
