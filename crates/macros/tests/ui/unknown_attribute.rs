use lazaret::declare::change_stream;

struct Orders;

#[change_stream(collection = "orders")]
#[retry_policy(max_atempts = 3)]
#[dead_letter_queue(retentionDays = 30)]
#[checkpoint(saveEveryN = 1, speed = 9)]
impl Orders {
    #[on_insert]
    async fn placed(&self) {}
}

fn main() {}
