use lazaret::declare::change_stream;
use lazaret::prelude::*;

struct Orders;

#[change_stream(collection = "orders")]
impl Orders {
    #[filter]
    async fn is_large(&self, Attempt(_): Attempt) {}

    #[filter]
    fn is_small(&self) -> bool {
        false
    }

    #[on_insert]
    async fn placed(&self) {}
}

fn main() {}
