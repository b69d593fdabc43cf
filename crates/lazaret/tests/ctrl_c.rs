//! Ctrl-C with real signals. This is the only test of its process, because a signal reaches every
//! listener of a process.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

use std::process::Command;
use std::sync::Arc;

use lazaret::Error;
use lazaret::memory::{MemoryLog, MemoryStore};
use lazaret::prelude::*;
use tokio::sync::Notify;

fn press_ctrl_c() {
    let pressed = Command::new("kill").args(["-INT", &std::process::id().to_string()]).status().unwrap();
    assert!(pressed.success());
}

fn consumer<A: 'static>(log: &MemoryLog, h: impl lazaret::handler::Handler<A>) -> Consumer {
    let store = Arc::new(MemoryStore::default());
    Consumer::builder("texts").source(log.join()).store(store).handler(h).build().unwrap()
}

#[tokio::test]
async fn the_first_ctrl_c_drains_and_the_second_ends_at_once() {
    let log = MemoryLog::new("texts", 1);
    log.push(0, "a", "first");
    let stats = consumer(&log, || async { press_ctrl_c() }).run_until_ctrl_c().await.unwrap();
    assert_eq!((stats.handled, log.committed(0)), (1, Some(0)));

    log.push(0, "a", "second");
    let draining = Arc::new(Notify::new());
    let seen = draining.clone();
    let hangs = move |context: Context| {
        let seen = seen.clone();
        async move {
            press_ctrl_c();
            // Two pending signals would count as one.
            seen.notified().await;
            press_ctrl_c();
            context.cancelled().await;
        }
    };
    let running = consumer(&log, hangs);
    let handle = running.handle();
    let run = tokio::spawn(running.run_until_ctrl_c());
    while !handle.is_draining() {
        tokio::task::yield_now().await;
    }
    draining.notify_one();
    let ended = run.await.unwrap();
    assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
    assert_eq!(log.committed(0), Some(0), "what was in flight is not committed");
}
