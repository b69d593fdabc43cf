use lazaret::declare::change_stream;

struct Orders;

#[change_stream(collection = "orders")]
#[dead_letter_queue(reprocess_strategy = "cron", reprocess_cron = "every night")]
impl Orders {
    #[on_insert]
    async fn placed(&self) {}
}

fn main() {}
