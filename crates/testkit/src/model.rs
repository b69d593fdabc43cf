//! A plain model of the letter store contract, and a state machine that runs it against a store.
//!
//! The model keeps every letter in one list and answers each question by walking over it. [`check`] draws sequences of
//! calls, runs them against both, and compares the answers and everything that can be observed after each call. A
//! failure is shrunk to a short sequence that still fails. The key space is small, so that calls meet. [`check_operations`] does the same
//! for operations, whose counters it compares with their letters.

mod drive;
mod operations;
mod steps;

pub use operations::check_operations;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lazaret_core::Clock;
use lazaret_core::LetterState::{
    self, Dead, Evicted, Parked, Quarantined, Resolved, Retrying, Skipped, Waiting,
};
use lazaret_core::store::{Act, ErrorKind, Limits, Placement, Store};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use proptest_state_machine::ReferenceStateMachine;

use drive::Driver;
use steps::{How, Item, Step, Under, steps};

/// The sequences that messages belong to: message n to the one at n modulo four.
const SEQUENCES: [&str; 4] = ["a", "b", "c", "d"];
/// How many messages there are. Few, so that some come twice.
const MESSAGES: u64 = 24;
/// How many sequences there are: behind those of the messages, one for each letter that leaves its own.
const ALL_SEQUENCES: usize = SEQUENCES.len() + MESSAGES as usize;
/// How long leases last, in seconds.
const LEASE: u64 = 30;
const LIMITS: Limits = Limits { max_sequences: Some(3), max_sequence_size: Some(4) };

/// A letter. Its place in the list is its index.
#[derive(Clone, Debug)]
struct Row {
    message: u64,
    sequence: usize,
    state: LetterState,
    due: Option<u64>,
    attempts: u32,
    poison: bool,
    enqueued: u64,
    touched: u64,
}

#[derive(Clone, Debug)]
struct LeaseRow {
    sequence: usize,
    until: u64,
    replay: bool,
    ended: bool,
}

/// The expected state of the store. Times are seconds since the start.
#[derive(Clone, Debug, Default)]
struct Model {
    now: u64,
    letters: Vec<Row>,
    leases: Vec<LeaseRow>,
    paused: [bool; 4],
    grants: u64,
    horizon: Option<u64>,
    /// The number of delivered messages. The model's source never goes back.
    delivered: u64,
    audited: usize,
}

/// The answer to a call, as text.
type Answer = Vec<String>;

fn refused(kind: ErrorKind) -> Answer {
    vec![format!("refused: {kind:?}")]
}

fn sequence_of(message: u64) -> usize {
    (message % 4) as usize
}

/// The sequence of a letter that left its own.
fn detached(message: u64) -> usize {
    SEQUENCES.len() + message as usize
}

/// The name of a sequence in answers.
fn name(sequence: usize) -> String {
    match SEQUENCES.get(sequence) {
        Some(name) => (*name).to_owned(),
        None => format!("left {}", sequence - SEQUENCES.len()),
    }
}

impl Model {
    /// The places of the open letters of a sequence, in order.
    fn open(&self, sequence: usize) -> Vec<usize> {
        let rows = self.letters.iter().enumerate();
        rows.filter(|(_, row)| row.sequence == sequence && row.state.is_open()).map(|(at, _)| at).collect()
    }

    fn open_sequences(&self) -> Vec<usize> {
        (0..ALL_SEQUENCES).filter(|sequence| !self.open(*sequence).is_empty()).collect()
    }

    fn head(&self, sequence: usize) -> Option<&Row> {
        self.open(sequence).first().map(|at| &self.letters[*at])
    }

    fn find(&self, message: u64) -> Option<usize> {
        self.letters.iter().position(|row| row.message == message)
    }

    /// The lease on a sequence that holds now.
    fn lease_on(&self, sequence: usize) -> Option<usize> {
        let holds = |lease: &LeaseRow| lease.sequence == sequence && !lease.ended && lease.until > self.now;
        self.leases.iter().position(holds)
    }

    /// When a head may run automatically; 0 is at once.
    fn due(row: &Row) -> Option<u64> {
        match row.state {
            Retrying => row.due,
            Waiting => Some(0),
            _ => None,
        }
    }

    /// The due time of the head of a sequence that may be claimed, apart from leases and the time.
    fn automatic(&self, sequence: usize) -> Option<u64> {
        let paused = self.paused.get(sequence) == Some(&true);
        self.head(sequence).filter(|_| !paused).and_then(Self::due)
    }

    fn claimable(&self) -> Vec<usize> {
        let free = |sequence: &usize| self.lease_on(*sequence).is_none();
        self.open_sequences()
            .into_iter()
            .filter(free)
            .filter(|s| self.automatic(*s).is_some_and(|due| due <= self.now))
            .collect()
    }

    /// How many to claim: one where the contract says which, else all.
    fn claim_limit(&self, one: bool) -> usize {
        let mut dues: Vec<u64> = self.claimable().iter().filter_map(|s| self.automatic(*s)).collect();
        dues.sort_unstable();
        let certain = dues.first() != Some(&0) && dues.first() != dues.get(1);
        if one && certain { 1 } else { ALL_SEQUENCES }
    }

    fn next_due(&self) -> Option<u64> {
        let free_at = |sequence: usize| self.lease_on(sequence).map_or(0, |lease| self.leases[lease].until);
        // The contract does not say how long a past due time is shown.
        let open = self.open_sequences().into_iter();
        open.filter_map(|s| Some(self.automatic(s)?.max(free_at(s)).max(self.now))).min()
    }

    fn is_full(&self, sequence: usize, limits: &Limits) -> bool {
        match self.open(sequence).len() as u64 {
            0 => limits.max_sequences.is_some_and(|max| self.open_sequences().len() as u64 >= max),
            size => limits.max_sequence_size.is_some_and(|max| size >= max),
        }
    }

    fn take(&mut self, sequence: usize, replay: bool) -> String {
        self.leases.push(LeaseRow { sequence, until: self.now + LEASE, replay, ended: false });
        let head = self.head(sequence).map(|row| row.message);
        format!("{}: {head:?}", name(sequence))
    }

    /// The message that a settlement speaks of, as far as the lease's sequence has one.
    fn settled_message(&self, lease: usize, second: bool) -> u64 {
        let open = self.open(self.leases[lease].sequence);
        open.get(usize::from(second)).map_or(MESSAGES, |at| self.letters[*at].message)
    }

    fn pick_lease(&self, lease: usize) -> Option<usize> {
        lease.checked_rem(self.leases.len())
    }

    /// Applies a step, and returns the expected answer of the store.
    fn step(&mut self, step: &Step) -> Answer {
        match step {
            Step::Assign => {
                self.grants += 1;
                vec![format!("horizon {:?}", self.horizon)]
            }
            Step::HandOff { items, grant, limited } => {
                let limits = if *limited { LIMITS } else { Limits::NONE };
                let mut full = [false; 4];
                items.iter().map(|item| self.hand_off(item, *grant, &limits, &mut full)).collect()
            }
            Step::ClaimDue { one } => {
                let limit = self.claim_limit(*one);
                let mut sequences = self.claimable();
                sequences.sort_by_key(|sequence| self.automatic(*sequence));
                sequences.truncate(limit);
                sequences.sort_unstable();
                sequences.into_iter().map(|sequence| self.take(sequence, false)).collect()
            }
            Step::Claim { sequence } => {
                let free = self.head(*sequence).is_some() && self.lease_on(*sequence).is_none();
                if free { vec![self.take(*sequence, true)] } else { vec![] }
            }
            Step::Settle { lease, second, how } => match self.pick_lease(*lease) {
                Some(lease) => self.settle(lease, *second, *how),
                None => vec![],
            },
            Step::Renew { lease } => match self.pick_lease(*lease) {
                Some(lease) if self.lease_on(self.leases[lease].sequence) != Some(lease) => {
                    refused(ErrorKind::Fenced)
                }
                Some(lease) => {
                    self.leases[lease].until = self.now + LEASE;
                    vec!["renewed".into()]
                }
                None => vec![],
            },
            Step::Release { lease } => {
                if let Some(lease) = self.pick_lease(*lease) {
                    self.leases[lease].ended = true;
                }
                vec![]
            }
            Step::Act { message, act } => self.act(*message, *act),
            Step::Clear => self.clear(),
            Step::Pause { sequence } => {
                self.paused[*sequence] = true;
                self.audited += 1;
                vec![]
            }
            Step::Resume { sequence } => {
                let was = std::mem::take(&mut self.paused[*sequence]);
                self.audited += usize::from(was);
                vec![was.to_string()]
            }
            Step::Advance { seconds } => {
                self.now += seconds;
                vec![]
            }
        }
    }

    fn hand_off(&mut self, item: &Item, grant: Under, limits: &Limits, full: &mut [bool; 4]) -> String {
        let offset = self.delivered;
        self.delivered += 1;
        let granted = match grant {
            Under::None => true,
            Under::Current => self.grants > 0,
            Under::Old => false,
        };
        if !granted {
            return refused(ErrorKind::Fenced).concat();
        }
        let sequence = sequence_of(item.message);
        let is_open = self.head(sequence).is_some();
        let answer = if let Some(at) = self.find(item.message) {
            format!("held {}", self.letters[at].state)
        } else if full[sequence] {
            // What is behind a refused message must not overtake it.
            return refused(ErrorKind::Full).concat();
        } else if item.placement == Placement::Closed {
            self.audited += 1;
            "closed".into()
        } else if item.placement == Placement::Behind && !is_open {
            return "not open".into();
        } else if self.is_full(sequence, limits) {
            full[sequence] = true;
            return refused(ErrorKind::Full).concat();
        } else if is_open {
            "appended".into()
        } else {
            "opened".into()
        };
        if self.find(item.message).is_none() {
            self.letters.push(Row {
                message: item.message,
                sequence,
                state: item.state,
                due: (item.state == Retrying).then_some(self.now + item.delay),
                attempts: 1,
                poison: false,
                enqueued: self.now,
                touched: self.now,
            });
        }
        self.horizon = self.horizon.max(Some(offset));
        answer
    }

    fn change(&mut self, at: usize, state: LetterState) {
        let now = self.now;
        let row = &mut self.letters[at];
        (row.state, row.touched) = (state, now);
        if state != Retrying {
            row.due = None;
        }
    }

    fn settle(&mut self, lease: usize, second: bool, how: How) -> Answer {
        let LeaseRow { sequence, replay, .. } = self.leases[lease];
        if self.lease_on(sequence) != Some(lease) {
            return refused(ErrorKind::Fenced);
        }
        if second {
            return refused(ErrorKind::NotFound);
        }
        let at = self.open(sequence)[0];
        match how {
            How::Requeue(state, delay) => {
                self.change(at, state);
                let due = (state == Retrying).then_some(self.now + delay);
                let row = &mut self.letters[at];
                row.attempts += 1;
                row.poison = row.attempts > 3;
                row.due = due;
                self.leases[lease].ended = true;
                return vec!["requeued".into()];
            }
            How::Leave => {
                self.change(at, Dead);
                let row = &mut self.letters[at];
                row.attempts += 1;
                row.poison = row.attempts > 3;
                let stays = sequence == detached(row.message);
                row.sequence = detached(row.message);
                if stays || replay {
                    self.leases[lease].ended = true;
                    return vec!["requeued".into()];
                }
            }
            How::Resolve => self.change(at, Resolved),
            How::Evict => self.change(at, Evicted),
            How::Skip => self.change(at, Skipped),
        }
        self.audited += usize::from(matches!(how, How::Evict | How::Skip));
        let Some(next) = self.head(sequence) else {
            self.leases[lease].ended = true;
            return vec!["closed".into()];
        };
        if replay || self.automatic(sequence).is_some_and(|due| due <= self.now) {
            return vec![format!("next {}", next.message)];
        }
        self.leases[lease].ended = true;
        vec!["blocked".into()]
    }

    fn act(&mut self, message: u64, act: Act) -> Answer {
        let Some(at) = self.find(message) else { return refused(ErrorKind::NotFound) };
        let Row { sequence, state, .. } = self.letters[at];
        let allowed = if act == Act::Restore { state == Evicted } else { state.is_open() };
        let in_work = self.lease_on(sequence).is_some() && at <= self.open(sequence)[0];
        if !allowed || in_work {
            return refused(ErrorKind::Conflict);
        }
        match act {
            Act::Evict => self.change(at, Evicted),
            Act::Resolve => self.change(at, Resolved),
            Act::Park => self.change(at, Parked),
            Act::Quarantine => self.change(at, Quarantined),
            Act::Restore => self.change(at, Dead),
            Act::Release => {
                // Behind the head it waits for it.
                let (state, due) = match self.open(sequence)[0] == at {
                    true => (Retrying, Some(self.now)),
                    false => (Waiting, None),
                };
                self.change(at, state);
                let row = &mut self.letters[at];
                (row.due, row.attempts, row.poison) = (due, 0, false);
            }
        }
        self.audited += 1;
        vec![self.letters[at].state.to_string()]
    }

    fn clear(&mut self) -> Answer {
        let (mut evicted, mut busy) = (0, 0);
        for sequence in 0..ALL_SEQUENCES {
            let keep = usize::from(self.lease_on(sequence).is_some());
            busy += keep;
            for at in self.open(sequence).into_iter().skip(keep) {
                self.change(at, Evicted);
                evicted += 1;
            }
        }
        self.audited += 1;
        vec![format!("{evicted} evicted, {busy} busy")]
    }

    /// Everything that can be observed, as text.
    fn observe(&self) -> Answer {
        let mut lines = Vec::new();
        let left = self.open_sequences().into_iter().filter(|sequence| *sequence >= SEQUENCES.len());
        for sequence in (0..SEQUENCES.len()).chain(left) {
            let name = name(sequence);
            lines.push(format!("{name}: full {}", self.is_full(sequence, &LIMITS)));
            for row in self.open(sequence).iter().map(|at| &self.letters[*at]) {
                let Row { message, state, due, attempts, poison, enqueued, touched, .. } = row;
                lines.push(format!(
                    "{name}: {message} {state} due {due:?} attempts {attempts} poison {poison} at {enqueued} {touched}"
                ));
            }
        }
        for message in 0..MESSAGES {
            lines.push(format!("{message}: {:?}", self.find(message).map(|at| self.letters[at].state)));
        }
        let mut heads: Vec<(u64, usize)> =
            self.open_sequences().into_iter().filter_map(|s| Some((self.head(s)?.touched, s))).collect();
        heads.sort_unstable();
        lines.push(format!("heads {heads:?}"));
        lines.push(format!("opened {:?}", self.open_sequences()));
        let count = |state: &LetterState| self.letters.iter().filter(|row| row.state == *state).count();
        let counts: Vec<usize> = LetterState::ALL.iter().map(count).collect();
        lines.push(format!("counts {counts:?} sequences {}", self.open_sequences().len()));
        lines.push(format!("next due {:?}", self.next_due()));
        lines.push(format!("paused {:?}", (0..4).filter(|s| self.paused[*s]).collect::<Vec<_>>()));
        lines.push(format!("audited {}", self.audited));
        lines
    }
}

struct Machine;

impl ReferenceStateMachine for Machine {
    type State = Model;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Model> {
        Just(Model::default()).boxed()
    }

    fn transitions(state: &Model) -> BoxedStrategy<Step> {
        steps(state.leases.len()).boxed()
    }

    fn apply(mut state: Model, transition: &Step) -> Model {
        state.step(transition);
        state
    }
}

/// Runs this many random sequences of calls against the store that `make` makes with a clock, and against the model.
///
/// # Panics
/// With the shortest failing sequence that was found, when the two ever differ.
pub fn check<S, F>(cases: u32, make: impl Fn(Arc<dyn Clock>) -> F)
where
    S: Store,
    F: Future<Output = S>,
{
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let outcome = runner.run(&Machine::sequential_strategy(1..80), |(mut model, steps, seen)| {
        runtime.block_on(async {
            let mut driver = Driver::new(&make).await;
            for step in &steps {
                if let Some(seen) = &seen {
                    seen.fetch_add(1, Ordering::SeqCst);
                }
                let actual = driver.run(step, &model).await;
                let expected = model.step(step);
                same(step, &actual, &expected)?;
                same(step, &driver.observe().await, &model.observe())?;
            }
            Ok(())
        })
    });
    if let Err(error) = outcome {
        panic!("the store and the model differ: {error}\n{runner}");
    }
}

/// Compares the answers of a store with the expected ones, line by line.
fn same(step: &Step, actual: &Answer, expected: &Answer) -> Result<(), TestCaseError> {
    if actual == expected {
        return Ok(());
    }
    let differing = actual.iter().zip(expected).find(|(actual, expected)| actual != expected);
    let message = match differing {
        Some((actual, expected)) => format!("after {step:?}\n  store: {actual}\n  model: {expected}"),
        None => format!("after {step:?}\n  store: {actual:?}\n  model: {expected:?}"),
    };
    Err(TestCaseError::fail(message))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::strategy::ValueTree;

    use super::*;

    #[test]
    fn the_steps_lead_everywhere() {
        let mut runner = TestRunner::deterministic();
        let mut seen = BTreeSet::new();
        for _ in 0..300 {
            let (mut model, steps, _) =
                Machine::sequential_strategy(60..80).new_tree(&mut runner).unwrap().current();
            for step in &steps {
                let letters_only =
                    |line: String| line.chars().filter(|c| !c.is_numeric()).collect::<String>();
                seen.extend(model.step(step).into_iter().map(letters_only));
            }
        }
        for answer in
            ["opened", "appended", "closed", "not open", "held resolved", "held waiting", "requeued"]
        {
            assert!(seen.contains(answer), "{answer:?} was never seen");
        }
        for answer in ["next ", "blocked", "renewed", "true", "false", "dead", "retrying", " evicted,  busy"]
        {
            assert!(seen.contains(answer), "{answer:?} was never seen");
        }
        for kind in [ErrorKind::Full, ErrorKind::Fenced, ErrorKind::NotFound, ErrorKind::Conflict] {
            assert!(seen.contains(&refused(kind).concat()), "{kind:?} was never seen");
        }
    }
}
