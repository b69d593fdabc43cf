use lazaret::declare::change_stream;

struct Orders;

#[change_stream(collection = " ", concurrency = 0)]
#[retry_policy(multiplier = 0.5, jitter = 20)]
#[dead_letter_queue(ttl_days = 40000, reprocess_batch_size = 0)]
#[checkpoint(every = 0)]
impl Orders {
    #[on_insert]
    async fn placed(&self) {}
}

fn main() {}
