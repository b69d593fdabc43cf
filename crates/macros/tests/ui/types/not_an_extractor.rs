use lazaret::declare::change_stream;

struct Order;

struct Orders;

#[change_stream(collection = "orders")]
impl Orders {
    #[on_insert]
    async fn placed(&self, _order: Order) {}
}

fn main() {}
