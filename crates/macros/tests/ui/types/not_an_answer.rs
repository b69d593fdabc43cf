use lazaret::declare::change_stream;

struct Refunds;

#[change_stream(collection = "refunds")]
impl Refunds {
    #[filter]
    fn is_large(&self) -> u32 {
        7
    }

    #[on_insert]
    async fn placed(&self) {}
}

fn main() {}
