//! Three members of a group in one process share a store. They are killed, closed and added every few
//! seconds.
//!
//! Messages are written continuously to a topic of twelve partitions. A fifth of all attempts fail, and
//! six messages always fail. The test checks the strategy `ordered`: nothing is lost, the messages of a
//! key are handled in order and never by two members at once, no committed position ever passes a
//! message that is not settled, and in the end the lag is zero.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lazaret_core::Message;
use lazaret_core::handler::Attempt;
use lazaret_core::policy::Strategy;
use lazaret_engine::{Consumer, Stats};
use lazaret_source_kafka::KafkaSource;
use lazaret_store_sqlite::{Options as StoreOptions, SqliteStore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::chaos::letters::Stored;
use crate::support::chaos::{CONSUMER, Chaos, Herd, PARTITIONS, Work, options, seed};
use crate::support::{Topic, broker};

/// Runs members as tasks of this process.
struct Tasks<'a> {
    topic: &'a Topic,
    store: Arc<SqliteStore>,
    journal: PathBuf,
    seed: u64,
}

impl Herd for Tasks<'_> {
    type Member = (CancellationToken, JoinHandle<Stats>);

    fn start(&mut self, number: u32) -> Self::Member {
        let work = Arc::new(Work::new(&self.journal, self.seed, number));
        let handler = move |message: Message, attempt: Attempt| {
            let work = work.clone();
            async move { work.handle(message, attempt).await }
        };
        let consumer = Consumer::builder(CONSUMER)
            .source(KafkaSource::open(self.topic.options()).unwrap())
            .store(self.store.clone())
            .handler(handler)
            .options(options(number, Strategy::Ordered))
            .build()
            .unwrap();
        let drain = CancellationToken::new();
        let stop = drain.clone();
        (stop, tokio::spawn(async move { consumer.run(drain).await.unwrap() }))
    }

    async fn kill(&mut self, (_, run): Self::Member) {
        run.abort();
        assert!(run.await.unwrap_err().is_cancelled(), "it ran until then");
    }

    async fn close(&mut self, (stop, run): Self::Member) {
        stop.cancel();
        run.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_are_killed_and_added_lose_nothing_and_keep_the_order() {
    // I1, I2, I6, I8
    let Some(broker) = broker() else { return };
    let (seed, folder) = (seed(), tempfile::tempdir().unwrap());
    let topic = Topic::new(broker, PARTITIONS as i32).await;
    let store = SqliteStore::open(folder.path().join("lazaret.db"), StoreOptions::default()).unwrap();
    let (store, journal) = (Arc::new(store), folder.path().join("journal"));
    let mut herd = Tasks { topic: &topic, store: store.clone(), journal: journal.clone(), seed };
    let mut letters = Stored::new(store, &topic);
    let chaos = Chaos { topic: &topic, journal, seed, lasts: Duration::from_secs(45), ordered: true };
    chaos.run(&mut herd, &mut letters).await;
}
