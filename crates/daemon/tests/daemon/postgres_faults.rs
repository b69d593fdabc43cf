//! A daemon whose PostgreSQL is killed, replaced by its standby, cut off or blocked in the middle goes on, and loses nothing. Starts
//! clusters of its own.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use lazaret_postgres_testkit::{Cluster, SYNCHRONOUS};

use crate::postgres::{Database, doctor, folder, stop};
use crate::support::{Folder, ask, attempts, event, get, wait_for};

const MESSAGES: usize = 600;
const KEYS: usize = 40;
/// Short delays, and nothing that stops the consumer.
const CONSUMER: &str = "retry: { initial-delay: 5ms, max-delay: 50ms, hold: 10ms, max-attempts: 8 }
    breaker: off
    fuse: off
    dead-letter: { max-sequences: unlimited, max-sequence-size: unlimited }
    advanced: { lease: 6s, refresh: 100ms, commit-interval: 20ms }";

fn key(n: usize) -> String {
    format!("k{}", n.wrapping_mul(2_654_435_761) % KEYS)
}

fn kind(n: usize) -> &'static str {
    match n % 20 {
        7 => "poison",
        part if part % 10 < 3 => "flaky",
        _ => "fine",
    }
}

/// Posts with patience: a post that failed may have been taken, and its id makes it safe to post it again.
fn post_until_taken(address: &str, lines: &str) {
    let json = "content-type: application/jsonl\r\n";
    wait_for("the post", || {
        let (status, _) = ask(address, "POST", "/v1/inbox/shop/batch", json, lines);
        // 202: all taken now; 200: all known; 207 and others: ask again.
        [200, 202].contains(&status).then_some(())
    });
}

fn handled(folder: &Folder) -> usize {
    let mut done: Vec<usize> =
        attempts(folder).iter().filter(|done| done.verdict == "handled").map(|done| done.n).collect();
    done.sort_unstable();
    done.dedup();
    done.len()
}

/// Waits until all messages are handled or letters, in order.
fn expect_all(database: &Database, folder: &Folder) {
    // Each key ends at its first poison message; those behind it wait.
    let mut blocked: BTreeMap<String, usize> = BTreeMap::new();
    let (mut fine, mut letters) = (0, Vec::new());
    for n in 0..MESSAGES {
        match blocked.entry(key(n)) {
            Entry::Occupied(_) => letters.push(format!("e-{n} waiting")),
            Entry::Vacant(free) if kind(n) == "poison" => {
                free.insert(n);
                letters.push(format!("e-{n} dead"));
            }
            Entry::Vacant(_) => fine += 1,
        }
    }
    let open =
        "SELECT message || ' ' || CASE state WHEN 1 THEN 'dead' WHEN 4 THEN 'waiting' ELSE state::text END
        FROM letters WHERE sid IS NOT NULL ORDER BY position";
    wait_for("all letters", || (database.query(open) == letters).then_some(()));
    wait_for("all others", || (handled(folder) == fine).then_some(()));
    wait_for("the last commit", || {
        let left = database.query("SELECT messages || ' ' || consumed FROM inboxes");
        (left == [format!("0 {MESSAGES}")]).then_some(())
    });
    for done in attempts(folder) {
        let behind = blocked.get(&done.key).is_some_and(|poison| done.n > *poison);
        assert!(!behind, "{done:?} was tried behind a poison message");
    }
}

#[test]
fn a_daemon_whose_server_crashes_again_and_again_loses_nothing() {
    // I1, I2, I9
    let Some(mut cluster) = Cluster::for_test(&[]) else { return };
    // Statements that wait for a lock longer than this are cancelled.
    let database = Database::at(format!("{}&options=-c%20statement_timeout%3D2000", cluster.dsn()));
    let folder = folder(&database.store(), "{ inbox: {} }", CONSUMER);
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    let batch = MESSAGES / 6;
    for round in 0..6 {
        let numbers = round * batch..(round + 1) * batch;
        let lines: String = numbers.map(|n| event(n, &key(n), kind(n))).collect();
        post_until_taken(&address, &lines);
        // Some of it is done, and some is not.
        let before = handled(&folder);
        wait_for("some messages", || (handled(&folder) > before || round > 3).then_some(()));
        match round {
            0 | 3 => {
                cluster.crash().unwrap();
                cluster.run().unwrap();
            }
            1 | 4 => {
                let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lazaret'";
                assert!(!database.query(cut).is_empty());
            }
            _ => {
                // Everything that writes letters waits, until its statement is cancelled.
                database.query("BEGIN; LOCK TABLE letters, inboxes IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep(3.5); COMMIT");
            }
        }
        assert!(daemon.runs(), "{}", folder.read("stderr.log"));
    }
    expect_all(&database, &folder);
    wait_for("readiness", || (get(&address, "/readyz").0 == 200).then_some(()));
    stop(daemon, &folder);
}

#[test]
fn a_daemon_follows_a_standby_that_is_promoted_and_loses_nothing() {
    // I1, I2, I9
    let Some(mut primary) = Cluster::for_test(&[SYNCHRONOUS]) else { return };
    let standby = primary.standby().unwrap();
    let hosts = [primary.host().unwrap(), standby.host().unwrap()].join(",");
    let database = Database::at(format!(
        "postgres://lazaret@{hosts}/postgres?target_session_attrs=read-write&sslmode=disable"
    ));
    let folder = folder(&database.store(), "{ inbox: {} }", CONSUMER);
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    let lines =
        |numbers: std::ops::Range<usize>| -> String { numbers.map(|n| event(n, &key(n), kind(n))).collect() };
    post_until_taken(&address, &lines(0..MESSAGES / 2));
    // Some of it is done, and some is not.
    wait_for("some messages", || (handled(&folder) > 0).then_some(()));
    primary.crash().unwrap();
    let (json, one) = ("content-type: application/jsonl\r\n", lines(MESSAGES / 2..MESSAGES / 2 + 1));
    let (status, said) = ask(&address, "POST", "/v1/inbox/shop/batch", json, &one);
    assert_eq!(status, 503, "{said}");
    standby.promote().unwrap();
    post_until_taken(&address, &lines(MESSAGES / 2..MESSAGES));
    assert!(daemon.runs(), "{}", folder.read("stderr.log"));
    expect_all(&database, &folder);
    wait_for("readiness", || (get(&address, "/readyz").0 == 200).then_some(()));
    stop(daemon, &folder);
}

#[test]
fn a_daemon_whose_hosts_are_all_replicas_says_to_promote_one() {
    let Some(primary) = Cluster::for_test(&[]) else { return };
    let standby = primary.standby().unwrap();
    let host = standby.host().unwrap();
    let one = format!("postgres://lazaret@{host}/postgres?sslmode=disable");
    let attributes = "target_session_attrs=read-write&sslmode=disable";
    let several = format!("postgres://lazaret@{host},{host}/postgres?{attributes}");
    for (store, why) in [(&one, "the server is a replica"), (&several, "does not allow writes")] {
        let here = folder(store, "{ inbox: {} }", CONSUMER);
        assert_eq!(here.run(&["run"]), 1);
        let said = here.read("stderr.log");
        assert!(said.contains(why) && said.contains("promote a replica"), "{said}");
        assert!(!said.contains("start the server"), "{said}");
        let said = doctor(&here);
        assert!(said.contains(why) && !said.contains("start the server"), "{said}");
    }
    let said = doctor(&folder(&several, "{ inbox: {} }", CONSUMER));
    assert!(said.contains("promote a replica"), "{said}");
}
