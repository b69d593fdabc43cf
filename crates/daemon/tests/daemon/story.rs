//! The whole story: a file, a handler in Python, failures that pass, poison, and a process that is killed again and again.

use std::collections::BTreeMap;

use lazaret_core::LetterState;

use crate::support::{Folder, WORKER, attempts, event, wait_for};

const CONFIG: &str = "
listen: 127.0.0.1:0
store: sqlite:lazaret.db
consumers:
  shop:
    source: { file: { path: events.jsonl } }
    handler: { command: { program: [python3, handler.py], mode: lines, workers: 4 } }
    retry: { max-attempts: 5, initial-delay: 5ms, max-delay: 50ms, hold: 10ms }
    dead-letter: { max-sequences: unlimited, max-sequence-size: unlimited }
    advanced: { lease: 5s, refresh: 100ms, commit-interval: 50ms }
";

/// Messages of which 30 % fail twice and 1 % always.
struct Story {
    messages: usize,
    keys: usize,
}

impl Story {
    fn key(&self, n: usize) -> String {
        // Spread without a pattern that would meet that of the kinds.
        format!("k{}", n.wrapping_mul(2_654_435_761) % self.keys)
    }

    fn kind(&self, n: usize) -> &'static str {
        match n % 100 {
            57 => "poison",
            part if part % 10 < 3 => "flaky",
            _ => "fine",
        }
    }

    fn tell(&self) -> Folder {
        let folder = Folder::new();
        folder.write("lazaret.yaml", CONFIG);
        folder.write("handler.py", WORKER);
        let lines: String = (0..self.messages).map(|n| event(n, &self.key(n), self.kind(n))).collect();
        folder.write("events.jsonl", &lines);
        folder
    }

    /// What must be left at the end, however often the process died on the way.
    fn check(&self, folder: &Folder) {
        let mut blocked = BTreeMap::new();
        let mut expected = Vec::new();
        for n in 0..self.messages {
            let key = self.key(n);
            let state = match (blocked.contains_key(&key), self.kind(n)) {
                (true, _) => LetterState::Waiting,
                (false, "poison") => {
                    blocked.insert(key, n);
                    LetterState::Dead
                }
                _ => continue,
            };
            expected.push((format!("e-{n}"), state));
        }
        assert!(!expected.is_empty());
        assert_eq!(folder.open_letters(), expected);
        self.check_order(folder, &blocked);
    }

    /// I2: in each key, the messages before its poison were handled in order, and none behind it was tried.
    fn check_order(&self, folder: &Folder, blocked: &BTreeMap<String, usize>) {
        let mut handled: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for attempt in attempts(folder) {
            let behind = blocked.get(&attempt.key).is_some_and(|poison| attempt.n > *poison);
            assert!(!behind, "{attempt:?} was tried behind a poison message");
            let done = handled.entry(attempt.key.clone()).or_default();
            // After a death a message may come again; those before it in its key were handled before.
            let next = (0..self.messages).find(|n| self.key(*n) == attempt.key && !done.contains(n));
            let in_turn = next == Some(attempt.n) || done.contains(&attempt.n);
            assert!(in_turn, "{attempt:?} came before {next:?}");
            if attempt.verdict == "handled" && !done.contains(&attempt.n) {
                done.push(attempt.n);
            }
        }
        for n in 0..self.messages {
            let key = self.key(n);
            let must = blocked.get(&key).is_none_or(|poison| n < *poison);
            let was = handled.get(&key).is_some_and(|done| done.contains(&n));
            assert_eq!(was, must, "message {n} of {key}");
        }
    }
}

/// As many messages and kills as `LAZARET_STORY=MESSAGES,KILLS` says, or as these.
fn size(messages: usize, kills: usize) -> (usize, usize) {
    let Ok(text) = std::env::var("LAZARET_STORY") else { return (messages, kills) };
    let (messages, kills) = text.split_once(',').expect("LAZARET_STORY=MESSAGES,KILLS");
    (messages.parse().unwrap(), kills.parse().unwrap())
}

/// How many attempts were made.
fn attempted(folder: &Folder) -> usize {
    folder.read("attempts.log").lines().count()
}

#[test]
fn poison_and_its_followers_are_left_and_all_else_is_handled_in_order() {
    // I1, I2
    let (messages, _) = size(1000, 0);
    let story = Story { messages, keys: messages / 10 };
    let folder = story.tell();
    assert_eq!(folder.run(&["run", "--until-idle"]), 3, "{}", folder.read("stderr.log"));
    story.check(&folder);
    // A second run finds nothing to do, and the same letters.
    let before = attempts(&folder).len();
    assert_eq!(folder.run(&["run", "--until-idle"]), 3);
    assert_eq!(attempts(&folder).len(), before);
}

#[test]
fn a_daemon_that_is_killed_again_and_again_comes_to_the_same_end() {
    // I1, I2, I8
    let (messages, kills) = size(600, 6);
    let story = Story { messages, keys: messages / 10 };
    let folder = story.tell();
    for kill in 0..kills {
        let mut daemon = folder.start(&["run", "--until-idle"]);
        // Kills are spread over the work; each comes while there is still something to do.
        let share = messages * (kill + 1) / (kills + 2);
        wait_for("the moment of a kill", || (attempted(&folder) >= share || !daemon.runs()).then_some(()));
        assert!(daemon.runs(), "it is killed in the midst of its work");
        daemon.kill();
    }
    assert_eq!(folder.run(&["run", "--until-idle"]), 3, "{}", folder.read("stderr.log"));
    story.check(&folder);
}
