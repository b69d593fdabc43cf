use lazaret::declare::{change_stream, kafka_listener};

struct Orders;

#[change_stream(database = "shop")]
impl Orders {
    #[on_insert]
    async fn placed(&self) {}
}

struct Everything;

#[change_stream(watch = "deployment", database = "shop")]
impl Everything {
    #[on_insert]
    async fn placed(&self) {}
}

struct Topics;

#[kafka_listener(group = "billing")]
impl Topics {
    #[on_message]
    async fn placed(&self) {}
}

fn main() {}
