use lazaret::declare::change_stream;

struct Orders;

#[change_stream(collection = "orders", full_document = "update-lokup", deployment_mode = "everywhere")]
#[dead_letter_queue(reprocess_strategy = "sometimes")]
impl Orders {
    #[on_insert]
    async fn placed(&self) {}
}

fn main() {}
