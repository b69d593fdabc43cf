use lazaret::declare::change_stream;

struct Orders;

#[change_stream(collection = "orders")]
impl Orders {
    #[on_insert]
    fn placed(&self) {}

    #[on_update]
    async fn updated() {}

    #[on_replace]
    async fn replaced(&mut self) {}

    #[on_delete]
    async fn deleted(self) {}

    #[on_change]
    async fn changed<T>(&self, _: T) {}
}

fn main() {}
