//! The outbox fulfills the contract of sources, with both ways of acknowledgement, with and without
//! announcements.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lazaret_core::source::Source;
use lazaret_core::{Partition, StreamName};
use lazaret_memory::MemoryStore;
use lazaret_source_postgres::{Ack, OutboxOptions, OutboxSource};
use lazaret_testkit::suite::source::{Capabilities, SourceHarness};
use lazaret_testkit::{SideBySide, source_test_suite};

use crate::support::{self, Shop, server};

/// Two outboxes as two partitions.
struct Outboxes {
    shop: Shop,
    store: Arc<MemoryStore>,
    ack: Ack,
    /// Whether a trigger announces rows, so that the source hardly polls.
    announced: bool,
}

impl Outboxes {
    async fn new(ack: Ack, announced: bool) -> Self {
        let shop = Shop::new(server().expect("the suite runs only with a server")).await;
        for partition in 0..2 {
            let columns = "id bigserial PRIMARY KEY, key text, payload text";
            shop.sql(&format!("CREATE TABLE outbox{partition} ({columns})")).await;
        }
        if announced {
            shop.sql(
                "CREATE FUNCTION announce() RETURNS trigger LANGUAGE plpgsql AS \
                     $$ BEGIN PERFORM pg_notify(TG_ARGV[0], ''); RETURN NULL; END $$",
            )
            .await;
            for partition in 0..2 {
                shop.sql(&format!(
                    "CREATE TRIGGER announce AFTER INSERT ON outbox{partition} FOR EACH STATEMENT \
                     EXECUTE FUNCTION announce('{}_{partition}')",
                    shop.schema
                ))
                .await;
            }
        }
        Self { shop, store: Arc::new(MemoryStore::default()), ack, announced }
    }

    fn options(&self, partition: u32) -> OutboxOptions {
        let options = self.shop.options(&format!("outbox{partition}"));
        let channel = format!("{}_{partition}", self.shop.schema);
        // This is longer than a case waits for an expected message.
        let poll = if self.announced { Duration::from_secs(600) } else { options.poll };
        OutboxOptions {
            ack: self.ack,
            batch_rows: 3,
            channel,
            poll,
            session_timeout: (3 * poll).max(options.session_timeout),
            ..options
        }
    }

    fn sources(&self) -> Vec<(Box<dyn Source>, Partition)> {
        let open = |partition| {
            let source = OutboxSource::open(self.options(partition), self.store.clone()).unwrap();
            let inner = source.partition();
            (Box::new(source) as Box<dyn Source>, inner)
        };
        (0..self.partitions()).map(open).collect()
    }
}

#[async_trait]
impl SourceHarness for Outboxes {
    fn capabilities(&self) -> Capabilities {
        Capabilities { groups: false, settled_ranges: true, finite: false }
    }

    fn stream(&self) -> StreamName {
        "orders".into()
    }

    fn partitions(&self) -> u32 {
        2
    }

    async fn push(&mut self, partition: u32, payload: &str) {
        let sql = format!("INSERT INTO outbox{partition} (key, payload) VALUES ('k', $1)");
        self.shop.client.execute(&sql, &[&payload]).await.unwrap();
    }

    async fn finish(&mut self) {
        unreachable!("it says that it is not finite")
    }

    async fn open(&mut self) -> Box<dyn Source> {
        Box::new(SideBySide::new(self.stream(), self.sources()))
    }

    async fn expel(&mut self, _nth: usize) {
        unreachable!("it says that it has no groups")
    }
}

source_test_suite!(positions, io if support::server_is_there, || Outboxes::new(Ack::Position, false));
source_test_suite!(announcements, io if support::server_is_there, || Outboxes::new(Ack::Position, true));
source_test_suite!(deletes, io if support::server_is_there, || Outboxes::new(Ack::Delete, false));
