//! What must hold after all the killing, by the log of attempts and by the store.
//!
//! A kill may cut an attempt off, and it may come between the handler's success and the commit: both are repeated by the
//! next life. So repetitions across lives are allowed, within one life they are not. The note or letter of a failed
//! attempt is durable before the next one starts, so a later life never counts below an attempt that was begun.

use std::collections::HashMap;
use std::fmt;

use lazaret_core::store::{Audit, Checkpoints, Counts, LetterStore};
use lazaret_core::{LetterId, LetterState, SequenceId, Sequencing};
use lazaret_store_sqlite::{Options, SqliteStore};

use crate::journal::{self, Entry};
use crate::plan::{MAX_ATTEMPTS, PARTITIONS, Plan, Script, message_id, queue};
use crate::source;
use crate::worker::Files;

/// How many letters are asked for at once.
const PAGE: usize = 1000;
/// How many violations are kept.
const MOST: usize = 100;

/// What was found.
#[derive(Debug, Default)]
pub struct Findings {
    /// How many messages there were.
    pub messages: u64,
    /// Attempts that began.
    pub attempts: u64,
    /// Attempts that were begun again with the same number: cut off, or not yet durable.
    pub repeated: u64,
    /// Attempts that ended without success.
    pub failed: u64,
    /// Messages that were handled.
    pub handled: u64,
    /// Crashes that dead and evicted letters are charged with.
    pub crashes: u64,
    /// Letters by state.
    pub letters: Counts,
    /// Entries of the audit.
    pub audit: u64,
    /// What did not hold, at most a hundred.
    pub violations: Vec<String>,
}

impl Findings {
    fn violated(&mut self, what: impl FnOnce() -> String) {
        if self.violations.len() < MOST {
            self.violations.push(what());
        }
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = [
            ("messages", self.messages),
            ("handled", self.handled),
            ("attempts", self.attempts),
            ("repeated", self.repeated),
            ("failed", self.failed),
            ("charged crashes", self.crashes),
            ("audit entries", self.audit),
            ("open sequences", self.letters.sequences),
        ];
        for (name, number) in numbers {
            writeln!(f, "{name:>22}  {number:>8}")?;
        }
        for state in LetterState::ALL.into_iter().filter(|state| self.letters.of(*state) > 0) {
            writeln!(f, "{:>22}  {:>8}", format!("letters {state}"), self.letters.of(state))?;
        }
        writeln!(f, "{:>22}  {:>8}", "violations", self.violations.len())?;
        for violation in &self.violations {
            writeln!(f, "VIOLATED {violation}")?;
        }
        Ok(())
    }
}

/// What the log says of a message.
#[derive(Clone, Copy, Default)]
struct Told {
    /// The highest attempt that began, and in which life.
    begun: Option<(u32, u32)>,
    /// Whether an attempt is under way, and in which life.
    running: Option<u32>,
    /// In which life it was last handled.
    handled: Option<u32>,
    /// Whether an operator has closed it, or was about to.
    closed: bool,
}

/// Holds the log and the store against the invariants.
///
/// # Errors
/// When they cannot be read.
pub fn check(plan: Plan, files: &Files) -> Result<Findings, String> {
    let mut findings = Findings { messages: plan.messages, ..Findings::default() };
    let entries =
        journal::read(&files.journal()).map_err(|error| format!("failed to read the log: {error}"))?;
    let entries = entries.map_err(|line| format!("line {line} of the log cannot be read"))?;
    let told = check_log(plan, &entries, &mut findings);
    let store = SqliteStore::open(files.store(), Options::default()).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| format!("failed to start the runtime: {error}"))?;
    runtime.block_on(check_store(plan, &told, &store, &mut findings)).map_err(|error| error.to_string())?;
    Ok(findings)
}

/// Order, attempts and repetitions, by the log alone.
fn check_log(plan: Plan, entries: &[Entry], findings: &mut Findings) -> Vec<Told> {
    let mut told = vec![Told::default(); plan.messages as usize];
    let mut keys = Keys::new(plan);
    let mut life = 0;
    for entry in entries {
        match *entry {
            Entry::Life(number) => life = number,
            Entry::Begin { message, attempt } => {
                findings.attempts += 1;
                if attempt > MAX_ATTEMPTS {
                    findings.violated(|| {
                        format!("I4: message {message} begins attempt {attempt} in life {life}")
                    });
                }
                keys.check_begin(message, life, &told, findings);
                begin(&mut told[message as usize], message, attempt, life, findings);
            }
            Entry::End { message, attempt, handled } => {
                let message_told = &mut told[message as usize];
                if message_told.running != Some(life) || message_told.begun != Some((attempt, life)) {
                    findings.violated(|| {
                        format!("attempt {attempt} of message {message} ends without a beginning")
                    });
                }
                message_told.running = None;
                match handled {
                    true => message_told.handled = Some(life),
                    false => findings.failed += 1,
                }
            }
            Entry::Close { message } => told[message as usize].closed = true,
        }
    }
    findings.handled = told.iter().filter(|told| told.handled.is_some()).count() as u64;
    told
}

/// Holds a new attempt against the earlier ones of its message.
fn begin(told: &mut Told, message: u64, attempt: u32, life: u32, findings: &mut Findings) {
    if let Some((before, before_life)) = told.begun {
        if before_life == life && attempt <= before {
            findings
                .violated(|| format!("I6: message {message} begins attempt {attempt} twice in life {life}"));
        }
        if attempt < before {
            findings.violated(|| {
                format!(
                    "I4: message {message} begins attempt {attempt} in life {life}, after attempt {before}"
                )
            });
        }
        findings.repeated += u64::from(attempt <= before);
    }
    if told.handled == Some(life) {
        findings
            .violated(|| format!("I8: message {message} begins again in life {life}, which has handled it"));
    }
    told.begun = Some((attempt, life));
    told.running = Some(life);
}

/// The messages of each key, in order, and how far each key has come.
struct Keys {
    plan: Plan,
    messages: Vec<Vec<u64>>,
    /// For each key, how many of its messages, from the first on, are known to be handled or closed.
    settled: Vec<usize>,
    /// For each key, the message whose attempt began last.
    last: Vec<Option<u64>>,
}

impl Keys {
    fn new(plan: Plan) -> Self {
        let mut messages = vec![Vec::new(); plan.keys as usize];
        for number in 0..plan.messages {
            messages[plan.key(number) as usize].push(number);
        }
        let keys = plan.keys as usize;
        Self { plan, messages, settled: vec![0; keys], last: vec![None; keys] }
    }

    /// I2: no earlier message of the key is neither handled nor closed. I6: none is under way.
    fn check_begin(&mut self, message: u64, life: u32, told: &[Told], findings: &mut Findings) {
        let key = self.plan.key(message) as usize;
        let (messages, settled) = (&self.messages[key], &mut self.settled[key]);
        let is_settled = |message: u64| {
            let told = &told[message as usize];
            told.handled.is_some() || told.closed
        };
        while messages.get(*settled).is_some_and(|message| is_settled(*message)) {
            *settled += 1;
        }
        if let Some(earlier) = messages.get(*settled).filter(|earlier| **earlier < message) {
            findings.violated(|| {
                format!("I2: message {message} of key {key} begins in life {life} before message {earlier} has ended")
            });
        }
        let other = self.last[key].replace(message).filter(|other| *other != message);
        if let Some(other) = other.filter(|other| told[*other as usize].running == Some(life)) {
            findings.violated(|| {
                format!("I2: message {message} of key {key} begins in life {life} while message {other} is under way")
            });
        }
    }
}

/// Every message has its end, each letter is one, and the counters are right.
async fn check_store(
    plan: Plan,
    told: &[Told],
    store: &SqliteStore,
    findings: &mut Findings,
) -> lazaret_core::store::Result<()> {
    let queue = queue();
    let mut found = Counts::default();
    let mut states = Vec::with_capacity(told.len());
    for numbers in (0..plan.messages).collect::<Vec<u64>>().chunks(PAGE) {
        let ids: Vec<_> = numbers.iter().map(|number| message_id(*number)).collect();
        states.extend(store.lookup(&queue, &ids).await?);
    }
    for (number, (told, state)) in (0..).zip(told.iter().zip(&states)) {
        if let Some(state) = state {
            found.by_state[*state as usize] += 1;
        }
        let mut crashes = 0;
        if matches!(state, Some(LetterState::Dead | LetterState::Evicted)) {
            let letter = store.get(&queue, LetterId::of(&queue, &message_id(number))).await?;
            crashes = letter.map_or(0, |letter| letter.crash_attempts);
        }
        findings.crashes += u64::from(crashes);
        check_message(plan, number, told, *state, crashes > 0, findings);
    }
    findings.letters = store.counts(&queue).await?;
    if findings.letters.by_state != found.by_state {
        let counted = findings.letters.by_state;
        findings
            .violated(|| format!("I8: {:?} letters are found and {counted:?} are counted", found.by_state));
    }
    check_sequences(plan, &states, store, findings).await?;
    check_positions(plan, store, findings).await?;
    let audit = store.verify_audit().await?.unwrap_or_default();
    findings.audit = audit.intact;
    if let Some(broken) = audit.broken {
        findings.violated(|| format!("I11: the audit is broken at entry {broken}"));
    }
    Ok(())
}

/// One message, by its script, the log and its letter.
fn check_message(
    plan: Plan,
    number: u64,
    told: &Told,
    state: Option<LetterState>,
    crashed: bool,
    findings: &mut Findings,
) {
    let script = plan.script(number);
    let handled = told.handled.is_some();
    let is_right = match state {
        None => handled,
        // Handled by the engine, or closed as handled by the operator.
        Some(LetterState::Resolved) => handled || told.closed,
        // One that was handled and not committed came again, and a kill in which it was alone used up its last attempt.
        Some(LetterState::Evicted) => told.closed && (!handled || crashed),
        // One that was handled may wait again: it came again after a kill and found its sequence open.
        Some(LetterState::Waiting) => true,
        // Who was alone in flight at a kill is charged with it, and may run out of attempts by that.
        Some(LetterState::Dead) => script == Script::FailsAlways || crashed,
        Some(_) => false,
    };
    if !is_right {
        let state = state.map_or("no letter", LetterState::as_str);
        findings.violated(|| {
            format!(
                "I1: message {number} ({script:?}) has {state}, handled: {handled}, closed: {}",
                told.closed
            )
        });
    }
    if handled && script == Script::FailsAlways {
        findings.violated(|| format!("message {number} was handled, though its handler always fails"));
    }
}

/// The letters of each open sequence: each once, in the order of the stream, behind a head that is dead.
async fn check_sequences(
    plan: Plan,
    states: &[Option<LetterState>],
    store: &SqliteStore,
    findings: &mut Findings,
) -> lazaret_core::store::Result<()> {
    let mut open: HashMap<u32, u64> = HashMap::new();
    for (number, _) in (0..).zip(states).filter(|(_, state)| state.is_some_and(LetterState::is_open)) {
        *open.entry(plan.key(number)).or_default() += 1;
    }
    if open.len() as u64 != findings.letters.sequences {
        let counted = findings.letters.sequences;
        findings.violated(|| format!("{} sequences are open and {counted} are counted", open.len()));
    }
    for (key, count) in open {
        let sequence = sequence_of(plan, key);
        let letters = store.sequence(&queue(), &sequence, 0, usize::MAX).await?;
        let offsets: Vec<u64> = letters.iter().map(|letter| letter.message.position.offset).collect();
        if letters.first().is_some_and(|head| head.state != LetterState::Dead) {
            findings
                .violated(|| format!("I9: the head of {sequence} is not dead, but nobody goes on with it"));
        }
        if offsets.len() as u64 != count || !offsets.is_sorted_by(|a, b| a < b) {
            findings.violated(|| format!("I2: {sequence} has {count} open letters and holds {offsets:?}"));
        }
        let size = store.sequence_size(&queue(), &sequence).await?;
        if size != count {
            findings.violated(|| format!("{sequence} has {count} open letters and says {size}"));
        }
    }
    Ok(())
}

fn sequence_of(plan: Plan, key: u32) -> SequenceId {
    let first = (0..plan.messages).find(|number| plan.key(*number) == key).unwrap_or_default();
    SequenceId::from(&*Sequencing::Key.text(&plan.message(first)))
}

/// Every partition is committed to its end.
async fn check_positions(
    plan: Plan,
    store: &SqliteStore,
    findings: &mut Findings,
) -> lazaret_core::store::Result<()> {
    for partition in 0..PARTITIONS {
        let last = (0..plan.messages).rev().find(|number| plan.partition(*number) == partition);
        let checkpoint = store.load(&source::name(partition)).await?.unwrap_or_default();
        match source::read(checkpoint) {
            Ok((committed, _)) if committed == last => {}
            Ok((committed, _)) => findings.violated(|| {
                format!("I1: partition {partition} is committed up to {committed:?}, and ends with {last:?}")
            }),
            Err(error) => findings.violated(|| error.to_string()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the check says of a log, for messages that all have one key.
    fn violations(entries: &[Entry]) -> Vec<String> {
        let (plan, mut findings) = (Plan { seed: 1, messages: 3, keys: 1 }, Findings::default());
        check_log(plan, entries, &mut findings);
        findings.violations
    }

    fn begin(message: u64, attempt: u32) -> Entry {
        Entry::Begin { message, attempt }
    }

    fn end(message: u64, attempt: u32, handled: bool) -> Entry {
        Entry::End { message, attempt, handled }
    }

    #[test]
    fn what_a_kill_cuts_off_may_be_repeated_by_the_next_life() {
        let log = [
            Entry::Life(1),
            begin(0, 1),
            end(0, 1, false),
            begin(0, 2),
            Entry::Life(2),
            begin(0, 2),
            end(0, 2, true),
            Entry::Life(3),
            begin(0, 2),
            end(0, 2, true),
            begin(1, 1),
            end(1, 1, true),
        ];
        assert_eq!(violations(&log), Vec::<String>::new());
    }

    #[test]
    fn every_kind_of_disorder_is_found() {
        let table: [(&str, Vec<Entry>); 7] = [
            ("before message 0 has ended", vec![begin(1, 1)]),
            ("before message 0 has ended", vec![begin(0, 1), end(0, 1, false), begin(1, 1)]),
            ("while message 0 is under way", vec![Entry::Close { message: 0 }, begin(0, 1), begin(1, 1)]),
            ("begins attempt 1 twice", vec![begin(0, 1), end(0, 1, false), begin(0, 1)]),
            ("which has handled it", vec![begin(0, 1), end(0, 1, true), begin(0, 2)]),
            (
                "after attempt 2",
                vec![begin(0, 1), end(0, 1, false), begin(0, 2), Entry::Life(2), begin(0, 1)],
            ),
            ("begins attempt 5", vec![begin(0, 5)]),
        ];
        for (expected, log) in table {
            let found = violations(&log);
            assert!(found.iter().any(|violation| violation.contains(expected)), "{expected}: {found:?}");
        }
        let closed = [Entry::Close { message: 0 }, begin(1, 1), end(1, 1, true), begin(2, 1)];
        assert_eq!(violations(&closed), Vec::<String>::new());
    }

    #[test]
    fn a_message_without_an_end_is_found() {
        let plan = Plan { seed: 1, messages: 1, keys: 1 };
        let lost = |told: Told, state| {
            let mut findings = Findings::default();
            check_message(plan, 0, &told, state, false, &mut findings);
            !findings.violations.is_empty()
        };
        let handled = Told { handled: Some(1), ..Told::default() };
        assert!(lost(Told::default(), None));
        assert!(lost(Told::default(), Some(LetterState::Resolved)));
        assert!(lost(Told::default(), Some(LetterState::Retrying)));
        assert!(!lost(handled, None));
        assert!(!lost(handled, Some(LetterState::Resolved)));
        assert!(!lost(Told { closed: true, ..Told::default() }, Some(LetterState::Evicted)));
    }
}
