//! Checks the invariants after the last kill, against the log of attempts and the store.
//!
//! A kill may abort an attempt, and it may come between the handler's success and the commit: both are repeated by the
//! next process. So repetitions across processes are allowed. Within one process they are not, except for the attempt that was
//! dropped because its lease was lost: a process that stalls for longer than the lease may repeat it once for each loss. The note or letter of a failed
//! attempt is durable before the next one starts, so a later process never counts below an attempt that was started.

use std::collections::HashMap;
use std::fmt;

use lazaret_core::store::{Audit, Checkpoints, Counts, LetterStore};
use lazaret_core::{LetterId, LetterState, SequenceId, Sequencing};
use lazaret_store_sqlite::{Options, SqliteStore};

use crate::journal::{self, Entry};
use crate::plan::{MAX_ATTEMPTS, PARTITIONS, Plan, Script, message_id, queue};
use crate::source;
use crate::worker::Files;

/// The number of letters per lookup.
const PAGE: usize = 1000;
/// The most violations that are kept.
const MOST: usize = 100;

/// The result of the checks.
#[derive(Debug, Default)]
pub struct Findings {
    /// The number of messages.
    pub messages: u64,
    /// Attempts that began.
    pub attempts: u64,
    /// Attempts that were repeated with the same number: aborted, or not yet durable.
    pub repeated: u64,
    /// Attempts that ended without success.
    pub failed: u64,
    /// Leases that were lost because a process stalled.
    pub lost: u64,
    /// Messages that were handled.
    pub handled: u64,
    /// Crashes that dead and evicted letters are charged with.
    pub crashes: u64,
    /// Letters by state.
    pub letters: Counts,
    /// Entries of the audit.
    pub audit: u64,
    /// The violations, at most a hundred.
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
            ("lost leases", self.lost),
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

/// The state of a message by the log.
#[derive(Clone, Copy, Default)]
struct Observed {
    /// The highest attempt that began, and in which process.
    begun: Option<(u32, u32)>,
    /// The process in which an attempt is running.
    running: Option<u32>,
    /// The process that last handled it.
    handled: Option<u32>,
    /// An operator has closed it, or was about to.
    closed: bool,
}

/// Checks the invariants against the log and the store.
///
/// # Errors
/// When they cannot be read.
pub fn check(plan: Plan, files: &Files) -> Result<Findings, String> {
    let mut findings = Findings { messages: plan.messages, ..Findings::default() };
    let entries =
        journal::read(&files.journal()).map_err(|error| format!("failed to read the log: {error}"))?;
    let entries = entries.map_err(|line| format!("line {line} of the log cannot be read"))?;
    let observed = check_log(plan, &entries, &mut findings);
    let store = SqliteStore::open(files.store(), Options::default()).map_err(|error| error.to_string())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| format!("failed to start the runtime: {error}"))?;
    runtime
        .block_on(check_store(plan, &observed, &store, &mut findings))
        .map_err(|error| error.to_string())?;
    Ok(findings)
}

/// Order, attempts and repetitions, by the log alone.
fn check_log(plan: Plan, entries: &[Entry], findings: &mut Findings) -> Vec<Observed> {
    let mut observed = vec![Observed::default(); plan.messages as usize];
    let mut keys = Keys::new(plan);
    let mut losses = Losses::new(entries);
    findings.lost = losses.count();
    let mut process = 0;
    for entry in entries {
        match *entry {
            Entry::Start(number) => process = number,
            Entry::Begin { message, attempt } => {
                findings.attempts += 1;
                if attempt > MAX_ATTEMPTS {
                    findings.violated(|| {
                        format!("I4: message {message} begins attempt {attempt} in process {process}")
                    });
                }
                let lost = losses.of(process, plan.key(message));
                keys.check_begin(message, process, lost.any, &observed, findings);
                begin(&mut observed[message as usize], message, attempt, process, lost, findings);
            }
            Entry::End { message, attempt, handled } => {
                let seen = &mut observed[message as usize];
                if seen.running != Some(process) || seen.begun != Some((attempt, process)) {
                    findings.violated(|| {
                        format!("attempt {attempt} of message {message} ends without a beginning")
                    });
                }
                seen.running = None;
                match handled {
                    true => seen.handled = Some(process),
                    false => findings.failed += 1,
                }
            }
            Entry::Close { message } => observed[message as usize].closed = true,
            // Counted before.
            Entry::Lost { .. } => {}
        }
    }
    findings.handled = observed.iter().filter(|observed| observed.handled.is_some()).count() as u64;
    observed
}

/// The leases that each process lost, by key. Counted before the check: the loss is logged beside the next attempt, not before
/// it.
struct Losses(HashMap<(u32, u32), Lost>);

/// The losses of one key in one process.
#[derive(Clone, Copy, Default)]
struct Lost {
    /// There was one.
    any: bool,
    /// Those that no repetition was explained with.
    unused: u64,
}

impl Losses {
    fn new(entries: &[Entry]) -> Self {
        let (mut losses, mut process) = (HashMap::<_, Lost>::new(), 0);
        for entry in entries {
            match *entry {
                Entry::Start(number) => process = number,
                Entry::Lost { key } => {
                    let lost = losses.entry((process, key)).or_default();
                    *lost = Lost { any: true, unused: lost.unused + 1 };
                }
                _ => {}
            }
        }
        Self(losses)
    }

    fn count(&self) -> u64 {
        self.0.values().map(|lost| lost.unused).sum()
    }

    fn of(&mut self, process: u32, key: u32) -> &mut Lost {
        self.0.entry((process, key)).or_default()
    }
}

/// Checks a new attempt against the earlier ones of its message.
fn begin(
    observed: &mut Observed,
    message: u64,
    attempt: u32,
    process: u32,
    lost: &mut Lost,
    findings: &mut Findings,
) {
    let repeats = observed.begun.is_some_and(|(before, by)| by == process && attempt <= before)
        || observed.handled == Some(process);
    let explained = repeats && lost.unused > 0;
    lost.unused -= u64::from(explained);
    if let Some((before, before_process)) = observed.begun {
        if before_process == process && attempt <= before && !explained {
            findings.violated(|| {
                format!("I6: message {message} begins attempt {attempt} twice in process {process}")
            });
        }
        if attempt < before {
            findings.violated(|| {
                format!(
                    "I4: message {message} begins attempt {attempt} in process {process}, after attempt {before}"
                )
            });
        }
        findings.repeated += u64::from(attempt <= before);
    }
    if observed.handled == Some(process) && !explained {
        findings.violated(|| {
            format!("I8: message {message} begins again in process {process}, which has handled it")
        });
    }
    observed.begun = Some((attempt, process));
    observed.running = Some(process);
}

/// The messages of each key, in order, and the progress of each key.
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
    fn check_begin(
        &mut self,
        message: u64,
        process: u32,
        lease_lost: bool,
        observed: &[Observed],
        findings: &mut Findings,
    ) {
        let key = self.plan.key(message) as usize;
        let (messages, settled) = (&self.messages[key], &mut self.settled[key]);
        let is_settled = |message: u64| {
            let observed = &observed[message as usize];
            observed.handled.is_some() || observed.closed
        };
        while messages.get(*settled).is_some_and(|message| is_settled(*message)) {
            *settled += 1;
        }
        if let Some(earlier) = messages.get(*settled).filter(|earlier| **earlier < message) {
            findings.violated(|| {
                format!("I2: message {message} of key {key} begins in process {process} before message {earlier} has ended")
            });
        }
        // An attempt that was dropped with its lease has no end in the log.
        let other = self.last[key].replace(message).filter(|other| *other != message && !lease_lost);
        if let Some(other) = other.filter(|other| observed[*other as usize].running == Some(process)) {
            findings.violated(|| {
                format!("I2: message {message} of key {key} begins in process {process} while message {other} is under way")
            });
        }
    }
}

/// Checks that every message is settled, and that the counters are right.
async fn check_store(
    plan: Plan,
    observed: &[Observed],
    store: &SqliteStore,
    findings: &mut Findings,
) -> lazaret_core::store::Result<()> {
    let queue = queue();
    let mut found = Counts::default();
    let mut states = Vec::with_capacity(observed.len());
    for numbers in (0..plan.messages).collect::<Vec<u64>>().chunks(PAGE) {
        let ids: Vec<_> = numbers.iter().map(|number| message_id(*number)).collect();
        states.extend(store.lookup(&queue, &ids).await?);
    }
    for (number, (observed, state)) in (0..).zip(observed.iter().zip(&states)) {
        if let Some(state) = state {
            found.by_state[*state as usize] += 1;
        }
        let mut crashes = 0;
        if matches!(state, Some(LetterState::Dead | LetterState::Evicted)) {
            let letter = store.get(&queue, LetterId::of(&queue, &message_id(number))).await?;
            crashes = letter.map_or(0, |letter| letter.crash_attempts);
        }
        findings.crashes += u64::from(crashes);
        check_message(plan, number, observed, *state, crashes > 0, findings);
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

/// Checks one message by its script, the log and its letter.
fn check_message(
    plan: Plan,
    number: u64,
    observed: &Observed,
    state: Option<LetterState>,
    crashed: bool,
    findings: &mut Findings,
) {
    let script = plan.script(number);
    let handled = observed.handled.is_some();
    let is_right = match state {
        None => handled,
        // Handled by the engine, or closed as handled by the operator.
        Some(LetterState::Resolved) => handled || observed.closed,
        // Handled, not committed and redelivered; then a kill while it was alone in flight used up its last attempt.
        Some(LetterState::Evicted) => observed.closed && (!handled || crashed),
        // A handled message may wait: it was redelivered after a kill and found its sequence open.
        Some(LetterState::Waiting) => true,
        // A message that was alone in flight at a kill is charged with it, which may use up its attempts.
        Some(LetterState::Dead) => script == Script::FailsAlways || crashed,
        Some(_) => false,
    };
    if !is_right {
        let state = state.map_or("no letter", LetterState::as_str);
        findings.violated(|| {
            format!(
                "I1: message {number} ({script:?}) has {state}, handled: {handled}, closed: {}",
                observed.closed
            )
        });
    }
    if handled && script == Script::FailsAlways {
        findings.violated(|| format!("message {number} was handled, though its handler always fails"));
    }
}

/// Checks the letters of each open sequence: each once, in the order of the stream, behind a dead head.
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
            findings.violated(|| format!("I9: the head of {sequence} is not dead, and is not retried"));
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

/// Checks that every partition is committed to its end.
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

    /// The violations in a log whose messages all have one key.
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
    fn an_attempt_that_a_kill_aborted_may_be_repeated_by_the_next_process() {
        let log = [
            Entry::Start(1),
            begin(0, 1),
            end(0, 1, false),
            begin(0, 2),
            Entry::Start(2),
            begin(0, 2),
            end(0, 2, true),
            Entry::Start(3),
            begin(0, 2),
            end(0, 2, true),
            begin(1, 1),
            end(1, 1, true),
        ];
        assert_eq!(violations(&log), Vec::<String>::new());
    }

    #[test]
    fn a_lost_lease_explains_one_repetition_of_its_key() {
        let handled = [Entry::Start(1), begin(0, 1), end(0, 1, true)];
        let again = [begin(0, 1), end(0, 1, true)];
        let lost = [Entry::Lost { key: 0 }];
        assert_eq!(violations(&[&handled[..], &lost, &again].concat()), Vec::<String>::new());
        // Logged beside the attempt, not before it.
        assert_eq!(violations(&[&handled[..], &again, &lost].concat()), Vec::<String>::new());
        let twice = violations(&[&handled[..], &lost, &again, &again].concat());
        assert_eq!(twice.len(), 2, "{twice:?}");
        let other_process = [&lost[..], &[Entry::Start(2)], &handled[1..], &again].concat();
        assert_eq!(violations(&other_process).len(), 2);
        // Dropped in the middle, and closed before it is tried again.
        let dropped =
            [Entry::Start(1), begin(0, 1), Entry::Lost { key: 0 }, Entry::Close { message: 0 }, begin(1, 1)];
        assert_eq!(violations(&dropped), Vec::<String>::new());
    }

    #[test]
    fn every_violation_of_order_is_found() {
        let table: [(&str, Vec<Entry>); 7] = [
            ("before message 0 has ended", vec![begin(1, 1)]),
            ("before message 0 has ended", vec![begin(0, 1), end(0, 1, false), begin(1, 1)]),
            ("while message 0 is under way", vec![Entry::Close { message: 0 }, begin(0, 1), begin(1, 1)]),
            ("begins attempt 1 twice", vec![begin(0, 1), end(0, 1, false), begin(0, 1)]),
            ("which has handled it", vec![begin(0, 1), end(0, 1, true), begin(0, 2)]),
            (
                "after attempt 2",
                vec![begin(0, 1), end(0, 1, false), begin(0, 2), Entry::Start(2), begin(0, 1)],
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
    fn an_unsettled_message_is_found() {
        let plan = Plan { seed: 1, messages: 1, keys: 1 };
        let lost = |observed: Observed, state| {
            let mut findings = Findings::default();
            check_message(plan, 0, &observed, state, false, &mut findings);
            !findings.violations.is_empty()
        };
        let handled = Observed { handled: Some(1), ..Observed::default() };
        assert!(lost(Observed::default(), None));
        assert!(lost(Observed::default(), Some(LetterState::Resolved)));
        assert!(lost(Observed::default(), Some(LetterState::Retrying)));
        assert!(!lost(handled, None));
        assert!(!lost(handled, Some(LetterState::Resolved)));
        assert!(!lost(Observed { closed: true, ..Observed::default() }, Some(LetterState::Evicted)));
    }
}
