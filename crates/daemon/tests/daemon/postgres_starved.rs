//! Two daemons on one PostgreSQL that are starved of CPU, again and again, for longer than their leases. Needs a server.
//!
//! `SIGSTOP` does to a process what starvation does, and the test decides when. The workers of a stopped daemon run on: they show
//! which calls a daemon has not ended.

use rustix::process::Signal;

use crate::postgres::{Database, post, stop};
use crate::support::{Daemon, Folder, event, get, wait_for};

/// The keys of the letters, one each.
const KEYS: [&str; 3] = ["a", "b", "c"];

/// The instance that is woken first, by round. It takes the letters over from the other one and from itself.
const WOKEN_FIRST: [usize; 4] = [0, 0, 1, 1];

/// The leases that have not ended, by the clock of the store.
const LEASED: &str =
    "SELECT count(*) FROM sequences WHERE lease_until > extract(epoch FROM clock_timestamp()) * 1000000000";

/// The leases in which an attempt is recorded. An attempt that begins at once is recorded a moment later: until then a stop costs no
/// attempt.
const RECORDED: &str = "SELECT count(*) FROM sequences WHERE lease_until IS NOT NULL AND NOT lease_waits";

/// What an instance says of a lease that it lost.
const LOST: &str = "lease lost, run of the sequence stopped";

/// Fails the first attempt. Later ones go on, and say so, until the file `go` is in the folder of the daemon.
const HANDLER: &str = r#"
import json, os, sys, time
instance, calls = sys.argv[1:]
log = os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
daemon = os.getppid()
for line in sys.stdin:
    message = json.loads(line)
    def say(what):
        os.write(log, f'{instance} {message["key"]} {message["attempt"]} {what}\n'.encode())
    say("begins")
    answer = {"verdict": "retry", "reason": "DEPENDENCY_UNAVAILABLE"}
    if message["attempt"] > 1:
        while not os.path.exists("go") and os.getppid() == daemon:
            time.sleep(0.1)
            say("runs")
        answer = {"verdict": "handled"}
    say("ends")
    print(json.dumps({"id": message["id"], **answer}), flush=True)
"#;

/// A line of the log that the workers of both instances share.
#[derive(Debug)]
struct Line {
    instance: String,
    key: String,
    attempt: u32,
    what: String,
}

/// The lines of the log, in order. A last one that is not whole yet is left out.
fn lines(log: &Folder) -> Vec<Line> {
    let text = log.read("calls.log");
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let read = |line: &str| {
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        let [instance, key, attempt, what]: [String; 4] = words.try_into().expect("a line has four words");
        Line { instance, key, attempt: attempt.parse().unwrap(), what }
    };
    whole.lines().map(read).collect()
}

/// The calls of the handler, in the order in which they began.
fn calls(log: &Folder) -> Vec<Line> {
    lines(log).into_iter().filter(|line| line.what == "begins").collect()
}

/// The number of the last call of each letter, 0 where there is none.
fn last_calls(calls: &[Line]) -> [u32; 3] {
    KEYS.map(|key| calls.iter().filter(|call| call.key == key).map(|call| call.attempt).max().unwrap_or(0))
}

struct Instance {
    name: &'static str,
    folder: Folder,
    daemon: Daemon,
    address: String,
}

impl Instance {
    fn start(database: &Database, name: &'static str, log: &Folder) -> Self {
        let folder = Folder::new();
        let (store, calls) = (database.store(), log.path("calls.log"));
        let config = format!(
            "
listen: 127.0.0.1:0
store: '{store}'
consumers:
  shop:
    source: {{ inbox: {{}} }}
    handler:
      command: {{ program: [python3, handler.py, {name}, '{}'], mode: lines, workers: 4, timeout: 10m }}
    retry: {{ initial-delay: 5ms, max-delay: 20ms, hold: 0s, max-attempts: 100, max-crashes: 0 }}
    advanced: {{ lease: 3s, refresh: 100ms, commit-interval: 20ms }}
",
            calls.display()
        );
        folder.write("lazaret.yaml", &config);
        folder.write("handler.py", HANDLER);
        let mut daemon = folder.start(&["run"]);
        let address = daemon.address();
        Self { name, folder, daemon, address }
    }

    /// Returns `true` if a call of each letter by this instance began after those.
    fn runs_all(&self, calls: &[Line], before: [u32; 3]) -> bool {
        let runs = |(key, before): (&str, u32)| {
            calls.iter().any(|call| call.instance == self.name && call.key == key && call.attempt > before)
        };
        KEYS.into_iter().zip(before).all(runs)
    }

    /// Waits until it has said of each of its calls that was followed by another one that its lease was lost.
    fn tells_of_lost_leases(&mut self, calls: &[Line]) {
        let last = last_calls(calls);
        let is_over = |call: &&Line| {
            let is_last = KEYS.into_iter().zip(last).any(|last| last == (call.key.as_str(), call.attempt));
            call.instance == self.name && call.attempt > 1 && !is_last
        };
        let over = calls.iter().filter(is_over).count();
        self.daemon.logs(LOST, over);
    }

    /// The lost leases by its metrics.
    fn lost_leases(&self) -> usize {
        let metrics = get(&self.address, "/metrics").1;
        let values = metrics.lines().filter(|line| line.starts_with("lazaret_leases_lost_total{"));
        values.map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap()).sum()
    }
}

#[test]
fn starved_instances_run_no_letter_beside_themselves_and_count_every_call() {
    // I4, I6
    let Some(database) = Database::open() else { return };
    let log = Folder::new();
    let first = Instance::start(&database, "first", &log);
    // Its tables are there.
    wait_for("the first instance", || (get(&first.address, "/readyz").0 == 200).then_some(()));
    let mut instances = [first, Instance::start(&database, "second", &log)];
    let messages: String = KEYS.iter().zip(0..).map(|(key, n)| event(n, key, "held")).collect();
    post(&instances[0].address, &messages);
    wait_for("a retry of each letter", || {
        last_calls(&calls(&log)).iter().all(|last| *last > 1).then_some(())
    });
    wait_for("the commit", || {
        (database.query("SELECT messages || ' ' || consumed FROM inboxes") == ["0 3"]).then_some(())
    });
    for woken in WOKEN_FIRST {
        wait_for("the attempts to be recorded", || (database.query(RECORDED) == ["3"]).then_some(()));
        let before = last_calls(&calls(&log));
        instances.iter().for_each(|instance| instance.daemon.signal(Signal::STOP));
        wait_for("the end of all leases", || (database.query(LEASED) == ["0"]).then_some(()));
        instances[woken].daemon.signal(Signal::CONT);
        wait_for("new calls", || instances[woken].runs_all(&calls(&log), before).then_some(()));
        instances[1 - woken].daemon.signal(Signal::CONT);
        let calls = calls(&log);
        instances.iter_mut().for_each(|instance| instance.tells_of_lost_leases(&calls));
    }
    instances.iter().for_each(|instance| instance.folder.write("go", ""));
    wait_for("the end of all letters", || {
        (database.query("SELECT count(*) FROM letters WHERE sid IS NOT NULL") == ["0"]).then_some(())
    });

    let (lines, calls) = (lines(&log), calls(&log));
    for (at, begun) in lines.iter().enumerate().filter(|(_, line)| line.what == "begins") {
        let is_earlier = |line: &&Line| {
            (&line.instance, &line.key) == (&begun.instance, &begun.key) && line.attempt < begun.attempt
        };
        let beside = lines[at..].iter().find(is_earlier);
        assert!(beside.is_none(), "{beside:?} ran beside {begun:?}");
    }
    for (n, key) in KEYS.into_iter().enumerate() {
        let numbers: Vec<u32> =
            calls.iter().filter(|call| call.key == key).map(|call| call.attempt).collect();
        assert!(numbers.is_sorted_by(|one, next| one < next), "a call did not count: {key} {numbers:?}");
        assert!(numbers.len() >= 2 + WOKEN_FIRST.len(), "each round cut off a call: {key} {numbers:?}");
        let last = numbers[numbers.len() - 1];
        let handled = |line: &&Line| line.key == key && line.attempt == last && line.what == "ends";
        assert_eq!(lines.iter().filter(handled).count(), 1, "{key} {last}");
        // The store has counted all before the one that was handled.
        let counted = database.query(&format!("SELECT attempts FROM letters WHERE message = 'e-{n}'"));
        assert_eq!(counted, [(last - 1).to_string()], "{key} {numbers:?}");
    }
    for instance in &instances {
        let said = instance.folder.read("stderr.log").matches(LOST).count();
        wait_for("the metric", || (instance.lost_leases() == said).then_some(()));
    }
    instances.into_iter().for_each(|instance| stop(instance.daemon, &instance.folder));
}
