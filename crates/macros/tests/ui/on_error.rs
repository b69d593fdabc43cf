use lazaret::declare::change_stream;
use lazaret::prelude::*;

struct Orders;

#[change_stream(collection = "orders")]
impl Orders {
    #[on_insert]
    async fn placed(&self) {}

    #[on_error]
    async fn failed(&self, _: &HandlerError) {}

    #[on_error]
    fn failed_again(&self, _: &HandlerError) {}

    #[on_error(std::fmt::Error)]
    fn not_written(&self) {}

    #[on_error(std::io::Error)]
    #[on_change]
    async fn both(&self) {}
}

fn main() {}
