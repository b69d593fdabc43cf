//! Two daemons on one PostgreSQL: what is told to one acts on both, and a dead or late one hands its work over. Needs a server.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::Value;

use crate::postgres::{Database, folder, post, stop};
use crate::support::{Daemon, Folder, ask, attempts, event, get, wait_for};

const INBOX: &str = "{ inbox: {} }";
const JSON: &str = "content-type: application/json\r\n";

/// Leases end soon, and nobody looks at the store for ten minutes: what is seen earlier was told.
const TOLD: &str = "retry: { initial-delay: 5ms, max-delay: 20ms, hold: 0s }
    advanced: { lease: 6s, refresh: 10m, commit-interval: 20ms }";

/// Leases end soon, and the store is looked at often.
const QUICK: &str = "retry: { initial-delay: 5ms, max-delay: 20ms, hold: 0s }
    advanced: { lease: 6s, refresh: 100ms, commit-interval: 20ms }";

/// As the usual worker, but a message of the kind `held` fails once, and one of the kind `broken` is dead-lettered while the file
/// `mended` is missing in the worker's folder; later attempts wait for the file `go` there.
const HOLDING: &str = r#"
import json, os, sys, time
log = os.open("attempts.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
daemon = os.getppid()
def say(message, what):
    os.write(log, f'{message["key"]} {message["payload"]["n"]} {message["attempt"]} {what}\n'.encode())
def hold(message):
    say(message, "holds")
    while not os.path.exists("go") and os.getppid() == daemon:
        time.sleep(0.01)
for line in sys.stdin:
    message = json.loads(line)
    kind = message["payload"]["kind"]
    answer = {"verdict": "handled"}
    if kind == "held" and message["attempt"] == 1:
        answer = {"verdict": "retry", "reason": "DEPENDENCY_UNAVAILABLE"}
    elif kind == "broken" and not os.path.exists("mended"):
        answer = {"verdict": "dead-letter", "reason": "BROKEN"}
    elif kind in ("held", "broken"):
        hold(message)
    say(message, answer["verdict"])
    print(json.dumps({"id": message["id"], **answer}), flush=True)
"#;

/// A daemon and its folder. Its address changes with each start.
struct Instance {
    folder: Folder,
    daemon: Daemon,
    address: String,
}

impl Instance {
    fn start(database: &Database, keys: &str, handler: Option<&str>) -> Self {
        let folder = folder(&database.store(), INBOX, keys);
        if let Some(handler) = handler {
            folder.write("handler.py", handler);
            // What is held does not time out.
            let config = folder.read("lazaret.yaml").replace("workers: 4", "workers: 4, timeout: 10m");
            folder.write("lazaret.yaml", &config);
        }
        let mut daemon = folder.start(&["run"]);
        let address = daemon.address();
        Self { folder, daemon, address }
    }

    fn status(&self) -> String {
        get(&self.address, "/v1/status").1
    }

    #[track_caller]
    fn shows(&self, words: &str) {
        wait_for(words, || self.status().contains(words).then_some(()));
    }

    /// Waits until it reads the inbox.
    fn reads(&self) {
        wait_for("the reader of the inbox", || {
            let status = self.status();
            (status.contains("\"state\":\"running\"") && !status.contains("\"error\"")).then_some(())
        });
    }

    /// The messages with this verdict.
    fn with(&self, verdict: &str) -> Vec<usize> {
        attempts(&self.folder).iter().filter(|done| done.verdict == verdict).map(|done| done.n).collect()
    }

    /// The last report of each instance, as this one lists them.
    fn last_reports(&self) -> BTreeMap<String, Timestamp> {
        let said: Value = serde_json::from_str(&get(&self.address, "/v1/instances").1).unwrap();
        let read = |instance: &Value| {
            let text = |field: &str| instance[field].as_str().unwrap().to_owned();
            (text("instance"), text("last-seen").parse().unwrap())
        };
        said["instances"].as_array().unwrap().iter().map(read).collect()
    }

    /// Replays all dead letters, and returns the path of the operation.
    #[track_caller]
    fn replays(&self) -> String {
        let begin = r#"{"action": "retry", "query": "", "all": true, "ramp": [], "rate": 0, "stop-at": 1,
            "reason": "mended"}"#;
        let (status, said) = ask(&self.address, "POST", "/v1/operations", JSON, begin);
        assert_eq!(status, 201, "{said}");
        let begun: Value = serde_json::from_str(&said).unwrap();
        format!("/v1/operations/{}", begun["id"].as_str().unwrap())
    }

    #[track_caller]
    fn waits_for(&self, n: usize, verdict: &str) {
        wait_for("an attempt", || self.with(verdict).contains(&n).then_some(()));
    }
}

#[test]
fn a_pause_given_to_one_instance_acts_on_both_at_once() {
    let Some(database) = Database::open() else { return };
    let reader = Instance::start(&database, TOLD, None);
    reader.reads();
    let other = Instance::start(&database, TOLD, None);
    other.shows("standing by: the instance ");
    post(&other.address, &event(0, "a", "fine"));
    reader.waits_for(0, "handled");
    wait_for("both instances and the partition", || {
        let (_, said) = get(&other.address, "/v1/instances");
        let version = format!("\"version\":\"{}\"", env!("CARGO_PKG_VERSION"));
        let partition = "{\"consumer\":\"shop\",\"stream\":\"shop\",\"partition\":0}";
        (said.matches(&version).count() == 2 && said.matches(partition).count() == 1).then_some(())
    });
    let reason = "{\"reason\": \"maintenance\"}";
    let (status, said) = ask(&other.address, "POST", "/v1/consumers/shop/pause", JSON, reason);
    assert_eq!(status, 200, "{said}");
    reader.shows("\"state\":\"paused\"");
    post(&other.address, &event(1, "a", "fine"));
    wait_for("the post", || (database.query("SELECT messages FROM inboxes") == ["1"]).then_some(()));
    assert_eq!(reader.with("handled"), [0]);
    let (status, said) = ask(&other.address, "POST", "/v1/consumers/shop/resume", JSON, reason);
    assert_eq!(status, 200, "{said}");
    reader.waits_for(1, "handled");
    // A letter that is retried by hand at one runs at once, at either.
    post(&other.address, &event(2, "b", "poison"));
    wait_for("the letter", || other.status().contains("\"dead\":1").then_some(()));
    let letter = database.query("SELECT id FROM letters WHERE message = 'e-2'").remove(0);
    let path = format!("/v1/letters/{letter}/release");
    let (status, said) = ask(&other.address, "POST", &path, JSON, reason);
    assert_eq!(status, 200, "{said}");
    let tried = || reader.with("dead-letter").len() + other.with("dead-letter").len();
    wait_for("the second attempt", || (tried() == 2).then_some(()));
    assert!(other.with("handled").is_empty(), "one reads the inbox");
    stop(reader.daemon, &reader.folder);
    stop(other.daemon, &other.folder);
}

#[test]
fn a_replay_and_its_end_given_to_one_instance_act_on_both_at_once() {
    // I6
    let Some(database) = Database::open() else { return };
    // An instance replays a quarter of this at a time: one letter.
    let keys = format!("{TOLD}\n    concurrency: 4\n    breaker: off\n    fuse: off");
    let one = Instance::start(&database, &keys, Some(HOLDING));
    let other = Instance::start(&database, &keys, Some(HOLDING));
    let both = [&one, &other];
    let lines: String = (0..4).map(|n| event(n, &format!("k{n}"), "broken")).collect();
    post(&one.address, &lines);
    other.shows("\"dead\":4");
    for instance in both {
        instance.folder.write("mended", "");
    }
    let operation = other.replays();
    wait_for("a letter at each", || both.iter().all(|at| at.with("holds").len() == 1).then_some(()));

    let reason = "{\"reason\": \"enough\"}";
    let (status, said) = ask(&other.address, "POST", &format!("{operation}/cancel"), JSON, reason);
    assert_eq!(status, 200, "{said}");
    let shown = || -> Value { serde_json::from_str(&get(&one.address, &operation).1).unwrap() };
    assert_eq!(shown()["state"], "cancelled");
    for instance in both {
        instance.folder.write("go", "");
    }
    // What was in flight is finished and counted, by either; nothing else is begun.
    wait_for("the end", || {
        let operation = shown();
        (operation["ok"] == 2 && operation["skipped"] == 2).then_some(())
    });
    one.shows("\"dead\":2");
    let tried = |verdict: &str| both.map(|instance| instance.with(verdict)).concat();
    assert_eq!((tried("holds").len(), tried("handled").len()), (2, 2));

    one.replays();
    wait_for("the others", || (tried("handled").len() == 4).then_some(()));
    let mut handled = tried("handled");
    handled.sort_unstable();
    assert_eq!(handled, [0, 1, 2, 3], "each once");
    wait_for("no open letters", || {
        (database.query("SELECT count(*) FROM letters WHERE sid IS NOT NULL") == ["0"]).then_some(())
    });
    stop(one.daemon, &one.folder);
    stop(other.daemon, &other.folder);
}

#[test]
fn instances_are_listed_with_their_last_report_until_they_stop() {
    let Some(database) = Database::open() else { return };
    let started = Timestamp::now();
    let one = Instance::start(&database, TOLD, None);
    let other = Instance::start(&database, TOLD, None);
    let listed = || Some(one.last_reports()).filter(|reports| reports.len() == 2);
    let first = wait_for("both instances", listed);
    // The server has the clock of this machine.
    assert!(first.values().all(|report| (started..=Timestamp::now()).contains(report)), "{first:?}");
    let later = wait_for("the next report of both", || {
        listed().filter(|reports| reports.iter().all(|(name, report)| *report > first[name]))
    });
    assert!(later.keys().eq(first.keys()), "{later:?}");
    stop(other.daemon, &other.folder);
    let left = wait_for("the end of one", || Some(one.last_reports()).filter(|reports| reports.len() == 1));
    assert!(left.keys().all(|name| first.contains_key(name)), "{left:?}");
    stop(one.daemon, &one.folder);
}

/// Two instances, of which the first holds the sequence of message 0 in an attempt.
fn holding(database: &Database) -> [Instance; 2] {
    let first = Instance::start(database, QUICK, Some(HOLDING));
    first.reads();
    post(&first.address, &event(0, "a", "held"));
    first.waits_for(0, "holds");
    post(&first.address, &event(1, "a", "fine"));
    wait_for("the message behind it", || {
        (database.query("SELECT count(*) FROM letters WHERE sid IS NOT NULL") == ["2"]).then_some(())
    });
    let second = Instance::start(database, QUICK, Some(HOLDING));
    second.folder.write("go", "");
    second.shows("standing by: the instance ");
    [first, second]
}

#[test]
fn the_work_of_a_killed_instance_is_resumed_by_the_other() {
    // I1, I2, I6
    let Some(database) = Database::open() else { return };
    let [first, second] = holding(&database);
    first.daemon.kill();
    for n in [0, 1] {
        second.waits_for(n, "handled");
    }
    let order: Vec<usize> = second.with("handled");
    assert_eq!(order, [0, 1], "in order");
    post(&second.address, &event(2, "b", "fine"));
    second.waits_for(2, "handled");
    second.reads();
    wait_for("no open letters", || {
        (database.query("SELECT count(*) FROM letters WHERE sid IS NOT NULL") == ["0"]).then_some(())
    });
    stop(second.daemon, &second.folder);
}

#[test]
fn an_instance_that_was_stopped_for_longer_than_its_lease_is_fenced_and_changes_nothing() {
    // I6
    let Some(database) = Database::open() else { return };
    let [mut first, second] = holding(&database);
    first.daemon.signal(Signal::STOP);
    for n in [0, 1] {
        second.waits_for(n, "handled");
    }
    second.reads();
    post(&second.address, &event(2, "b", "fine"));
    second.waits_for(2, "handled");
    wait_for("the commit", || {
        (database.query("SELECT messages || ' ' || consumed FROM inboxes") == ["0 3"]).then_some(())
    });
    let tables =
        "SELECT json_agg(l ORDER BY lid)::text FROM letters l UNION ALL SELECT count(*)::text FROM sequences
        UNION ALL SELECT count(*)::text FROM audit UNION ALL SELECT consumed || ' ' || fence FROM inboxes";
    let before = database.query(tables);
    assert!(before[0].contains("e-0") && before[3].starts_with("3 "), "{before:?}");
    // Its handler has answered when it wakes up.
    first.folder.write("go", "");
    first.waits_for(0, "handled");
    first.daemon.signal(Signal::CONT);
    first.daemon.logs("lease of the inbox lost", 1);
    first.shows("standing by: the instance ");
    wait_for("the end of what was in flight", || first.status().contains("\"in-flight\":0").then_some(()));
    assert_eq!(database.query(tables), before, "the woken one has changed nothing");
    // And it takes over in its turn.
    stop(second.daemon, &second.folder);
    first.reads();
    post(&first.address, &event(3, "c", "fine"));
    first.waits_for(3, "handled");
    stop(first.daemon, &first.folder);
}

#[test]
fn an_instance_that_was_stopped_for_longer_than_its_lease_starts_nothing_that_another_has_handled() {
    // I6
    let Some(database) = Database::open() else { return };
    let keys = format!("{QUICK}\n    concurrency: 1");
    let first = Instance::start(&database, &keys, Some(HOLDING));
    first.folder.write("mended", "");
    first.reads();
    let kind = |n: usize| if n == 0 { "broken" } else { "fine" };
    let lines: String = (0..20).map(|n| event(n, &format!("k{n}"), kind(n))).collect();
    post(&first.address, &lines);
    // The others wait in its memory for the only attempt.
    first.waits_for(0, "holds");
    wait_for("all in flight", || first.status().contains("\"in-flight\":20").then_some(()));
    let second = Instance::start(&database, &keys, Some(HOLDING));
    second.shows("standing by: the instance ");
    for file in ["mended", "go"] {
        second.folder.write(file, "");
    }
    first.daemon.signal(Signal::STOP);
    (0..20).for_each(|n| second.waits_for(n, "handled"));
    // Its handler has answered when it wakes up.
    first.folder.write("go", "");
    first.waits_for(0, "handled");
    first.daemon.signal(Signal::CONT);
    first.shows("standing by: the instance ");
    wait_for("the end of what was in flight", || first.status().contains("\"in-flight\":0").then_some(()));
    assert_eq!(first.with("handled"), [0], "the call in which it was stopped");
    // And it takes over in its turn.
    stop(second.daemon, &second.folder);
    first.reads();
    post(&first.address, &event(20, "c", "fine"));
    first.waits_for(20, "handled");
    stop(first.daemon, &first.folder);
}
