//! The outbox under concurrent calls: every end is read once, whoever commits first, and whenever watching begins.

use lazaret_testkit::suite::outbox::concurrent::{
    Writers, an_end_that_is_listed_late_is_still_read, watching_that_begins_between_hand_offs_misses_none,
};

use crate::support::{TestSchema, server};

const WRITERS: Writers = Writers { count: 6, calls: 25 };

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_end_that_is_committed_after_a_later_one_was_forgotten_is_still_read() {
    // I11
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    an_end_that_is_listed_late_is_still_read(WRITERS, || test.open(None)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watching_that_begins_between_hand_offs_misses_none_of_them() {
    // I11
    let Some(dsn) = server() else { return };
    let test = TestSchema::new(dsn);
    watching_that_begins_between_hand_offs_misses_none(WRITERS, || test.open(None)).await;
}
