use lazaret::declare::change_stream;

struct Refunds;

#[change_stream(collection = "refunds")]
#[retry_policy(no_retry_on("card declined"))]
impl Refunds {
    #[on_insert]
    async fn placed(&self) {}
}

fn main() {}
