//! The time from a restart with a full store to the first handled message.

use std::time::Instant;

use lazaret_core::HandlerError;
use lazaret_core::handler::Payload;
use lazaret_core::store::LetterStore;
use lazaret_engine::Options;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::million::Million;
use super::{BENCH, open};
use crate::consumer::{consumer, let_go};
use crate::core::options;
use crate::letters::queue;
use crate::source::{Plan, is_bad};
use crate::table::{ROUNDS, Row, median};

pub(super) async fn run(million: &Million) -> Vec<Row> {
    let path = million.path().await;
    let mut times = Vec::new();
    let mut letters = 0;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let store = open(path);
        let (handled, mut first) = mpsc::unbounded_channel();
        // Due letters run at the same time; only the message from the source counts.
        let consumer = consumer(
            &Plan::distinct(1, 1.0),
            &store,
            Options { until_idle: false, ..options() },
            move |Payload(payload): Payload| {
                if is_bad(payload.as_ref()) {
                    // Only the first message is received.
                    _ = handled.send(Instant::now());
                }
                std::future::ready(Ok::<(), HandlerError>(()))
            },
        );
        let drain = CancellationToken::new();
        let run = tokio::spawn(consumer.run(drain.clone()));
        let at = first.recv().await.expect("the message is handled");
        times.push((at - started).as_secs_f64() * 1e3);
        drain.cancel();
        run.await.expect("the engine does not panic").expect("the engine ends without an error");
        letters = store.counts(&queue()).await.expect("the store counts").open();
        let_go(store).await;
    }
    let name = format!("restart/{letters} open letters, from opening the store to the first message");
    vec![Row::new(BENCH, name, "ms", median(&times))]
}
