//! The cache after refused requests: it keeps what is still to be written, and nothing that was rolled back.

use lazaret_core::{ConsumerName, Failure, Fingerprint, Reason};

use super::groups::CachedGroup;
use super::inboxes::InboxNumbers;
use super::*;
use crate::options::Options;
use crate::schema;

/// A cache over a file, in a transaction.
struct Bench {
    connection: Connection,
    cache: WriteCache,
    _folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let connection = schema::open_file(&folder.path().join("letters.db"), &Options::default()).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        Self { connection, cache: WriteCache::default(), _folder: folder }
    }

    /// A request that succeeds.
    fn done<T>(&mut self, request: impl FnOnce(&Connection, &mut WriteCache) -> T) -> T {
        let answer = request(&self.connection, &mut self.cache);
        self.cache.keep(&self.connection).unwrap();
        answer
    }

    /// Writes the cache, and forgets it.
    fn flush(&mut self) {
        self.cache.write(&self.connection).unwrap();
        self.cache.clear();
    }

    /// A request that is refused after it has changed the file in this way.
    fn refused(&mut self, change: &str, request: impl FnOnce(&Connection, &mut WriteCache)) {
        self.connection.execute_batch("SAVEPOINT request").unwrap();
        let changes = self.connection.total_changes();
        self.connection.execute_batch(change).unwrap();
        assert!(self.connection.total_changes() > changes, "{change}");
        request(&self.connection, &mut self.cache);
        self.cache.undo_with_savepoint();
        self.connection.execute_batch("ROLLBACK TO request; RELEASE request").unwrap();
    }

    fn number(&self, select: &str) -> i64 {
        self.connection.query_row(select, [], |row| row.get(0)).unwrap()
    }
}

#[test]
fn a_refused_request_changes_no_queue() {
    let mut bench = Bench::new();
    let [changed, read, made] = ["changed", "read", "made"].map(|name| QueueName::of(name, name));
    for name in [&changed, &read] {
        bench.done(|connection, cache| cache.queue(connection, name).unwrap());
    }
    bench.flush();
    let set = |connection: &Connection, cache: &mut WriteCache, fence| {
        let numbers = cache.queue(connection, &changed).unwrap();
        cache.set_queue(&changed, QueueNumbers { fence, ..numbers });
    };
    bench.done(|connection, cache| set(connection, cache, 7));
    bench.refused("UPDATE queues SET fence = 5 WHERE name = 'read/read'", |connection, cache| {
        assert_eq!(cache.queue(connection, &read).unwrap().fence, 5);
        cache.queue(connection, &made).unwrap();
        set(connection, cache, 8);
    });
    let fences = |bench: &mut Bench| {
        [&changed, &read, &made].map(|name| bench.done(|on, cache| cache.queue(on, name).unwrap().fence))
    };
    assert_eq!(fences(&mut bench), [7, 0, 0], "the change that was not written yet is there");
    bench.flush();
    assert_eq!(fences(&mut bench), [7, 0, 0]);
    assert_eq!(bench.number("SELECT count(*) FROM queues"), 3, "the new one was inserted again");
}

#[test]
fn a_refused_request_changes_no_grant() {
    let mut bench = Bench::new();
    let [changed, read, made] = [0, 1, 2].map(|index| Partition::new("events", index));
    let row = |fence| GrantRow { fence, ..GrantRow::default() };
    bench.done(|_, cache| [&changed, &read].map(|partition| cache.set_grant(1, partition, row(1))));
    bench.flush();
    bench.done(|_, cache| cache.set_grant(1, &changed, row(7)));
    bench.refused("UPDATE grants SET fence = 5 WHERE partition = 1", |connection, cache| {
        assert_eq!(cache.grant(connection, 1, &read).unwrap(), Some(row(5)));
        cache.set_grant(1, &made, row(5));
        cache.set_grant(1, &changed, row(8));
    });
    let rows = |bench: &mut Bench| {
        [&changed, &read, &made]
            .map(|partition| bench.done(|on, cache| cache.grant(on, 1, partition).unwrap()))
    };
    let expected = [Some(row(7)), Some(row(1)), None];
    assert_eq!(rows(&mut bench), expected, "the change that was not written yet is there");
    bench.flush();
    assert_eq!(rows(&mut bench), expected);
}

#[test]
fn a_refused_request_changes_no_group() {
    let mut bench = Bench::new();
    let print = |text: &str| Fingerprint::of(&Failure::new(Reason::TIMEOUT, text, "boom"));
    let [changed, read, made] = ["Changed", "Read", "Made"].map(print);
    let named = |connection: &Connection, cache: &mut WriteCache, name, behind| {
        let gid = cache.groups.named(connection, 1, name, 0).unwrap();
        let group: &mut CachedGroup = cache.groups.get(connection, gid).unwrap();
        // One without letters would be removed.
        (group.row.by_state[0], group.row.behind) = (1, behind);
        gid
    };
    let [first, second] = [changed, read].map(|name| bench.done(|on, cache| named(on, cache, name, 1)));
    bench.flush();
    bench.done(|connection, cache| named(connection, cache, changed, 7));
    let change = format!(
        "UPDATE groups SET behind = 5 WHERE gid = {second};
         INSERT INTO groups (qid, fingerprint) VALUES (1, '{made}')"
    );
    bench.refused(&change, |connection, cache| {
        assert_eq!(cache.groups.fingerprint(connection, second).unwrap(), read);
        assert_eq!(cache.groups.get(connection, second).unwrap().row.behind, 5);
        cache.groups.named(connection, 1, made, 0).unwrap();
        named(connection, cache, changed, 8);
    });
    let third = bench.done(|connection, cache| named(connection, cache, made, 3));
    let behind = |bench: &mut Bench| {
        [first, second, third]
            .map(|gid| bench.done(|on, cache| cache.groups.get(on, gid).unwrap().row.behind))
    };
    assert_eq!(behind(&mut bench), [7, 1, 3], "the change that was not written yet is there");
    bench.flush();
    assert_eq!(behind(&mut bench), [7, 1, 3]);
    assert_eq!(bench.number("SELECT count(*) FROM groups"), 3, "the new one was inserted again");
}

#[test]
fn a_refused_request_changes_no_inbox() {
    let mut bench = Bench::new();
    let [changed, read, made] = ["changed", "read", "made"].map(ConsumerName::from);
    for consumer in [&changed, &read] {
        bench.done(|connection, cache| cache.inboxes.of(connection, consumer).unwrap());
    }
    bench.flush();
    let set = |connection: &Connection, cache: &mut WriteCache, next| {
        let numbers = cache.inboxes.of(connection, &changed).unwrap();
        cache.inboxes.set(&changed, InboxNumbers { next, ..numbers });
    };
    bench.done(|connection, cache| set(connection, cache, 7));
    bench.refused("UPDATE inbox_logs SET next = 5 WHERE consumer = 'read'", |connection, cache| {
        assert_eq!(cache.inboxes.of(connection, &read).unwrap().next, 5);
        cache.inboxes.of(connection, &made).unwrap();
        set(connection, cache, 8);
    });
    let next = |bench: &mut Bench| {
        [&changed, &read, &made].map(|name| bench.done(|on, cache| cache.inboxes.of(on, name).unwrap().next))
    };
    assert_eq!(next(&mut bench), [7, 0, 0], "the change that was not written yet is there");
    bench.flush();
    assert_eq!(next(&mut bench), [7, 0, 0]);
    assert_eq!(bench.number("SELECT count(*) FROM inbox_logs"), 3, "the new one was inserted again");
}

#[test]
fn the_clock_of_the_last_claim_outlives_a_rollback_unless_its_clamps_are_undone() {
    let (mut cache, queue) = (WriteCache::default(), QueueName::of("c", "c"));
    let at = |second| Timestamp::from_second(second).unwrap();
    assert!(cache.clock_went_back(&queue, at(5)), "nothing is known");
    cache.committed();
    cache.roll_back();
    assert!(!cache.clock_went_back(&queue, at(6)));
    assert!(cache.clock_went_back(&queue, at(1)));
    cache.roll_back();
    assert!(cache.clock_went_back(&queue, at(2)), "the leases are as they were");
    cache.undo();
    assert!(cache.clock_went_back(&queue, at(3)));
}
