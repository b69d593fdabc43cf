use lazaret::declare::{change_stream, kafka_listener};

struct Topics;

#[kafka_listener(topics = "orders")]
#[checkpoint(every = 10)]
impl Topics {
    #[on_insert]
    async fn placed(&self) {}
}

struct Orders;

#[change_stream(collection = "orders")]
impl Orders {
    #[on_message]
    async fn placed(&self) {}
}

fn main() {}
