use lazaret::declare::{change_stream, kafka_listener};

struct Orders;

#[change_stream(collection = "orders")]
impl Orders {
    async fn placed(&self) {}
}

struct Topics;

#[kafka_listener(topics = "orders")]
impl Topics {}

fn main() {}
