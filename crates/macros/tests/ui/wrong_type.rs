use lazaret::declare::change_stream;

struct Orders;

#[change_stream(collection = 7)]
#[retry_policy(max_attempts = "three", multiplier = true, jitter = "0.2", initial_delay = 500, retry_on = TimeoutError)]
#[dead_letter_queue(enabled = 1, ttl_days = -1, collection)]
impl Orders {
    #[on_insert]
    async fn placed(&self) {}
}

fn main() {}
