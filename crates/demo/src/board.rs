//! What is known at this moment: the journal, what the worker says, and what became of it, in one place for story and screen.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::journal::{Entry, Fact};
use crate::orders;
use crate::report::{Report, State};
use crate::supervisor::News;

/// How many events are kept.
const KEPT: usize = 64;
/// Over which time rates are told.
const RATE_OVER: Duration = Duration::from_secs(2);

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Something good.
    Good,
    /// Something to look at.
    Warning,
    /// Something bad.
    Bad,
    /// Something that somebody did.
    Done,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Happened {
    /// How long after the beginning.
    pub(crate) after: Duration,
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

/// What is known at this moment.
#[derive(Debug)]
pub(crate) struct Board {
    begun: Instant,
    /// Orders that were sent.
    pub(crate) sent: u32,
    /// Attempts, and how many of them were not the first, and how many failed.
    pub(crate) attempts: u64,
    pub(crate) retries: u64,
    pub(crate) failed: u64,
    /// The orders that were handled.
    handled: HashSet<String>,
    /// Why orders that are not handled failed last.
    reasons: HashMap<String, String>,
    /// How many were handled when, for the rate.
    marks: VecDeque<(Instant, usize)>,
    /// How often the worker died.
    pub(crate) deaths: u32,
    /// Whether the worker runs.
    pub(crate) running: bool,
    /// Where the API listens.
    pub(crate) port: Option<u16>,
    /// How things stand, and how often that was told.
    pub(crate) state: State,
    pub(crate) told: u64,
    /// Whether the bank is down.
    pub(crate) is_outage: bool,
    /// Whether the worker was asked to end, and has.
    pub(crate) ended: bool,
    /// Why it cannot go on.
    pub(crate) hopeless: Option<String>,
    happened: VecDeque<Happened>,
    /// How many events there were, those that are not kept included.
    happenings: u64,
}

impl Board {
    pub(crate) fn new() -> Self {
        Self {
            begun: Instant::now(),
            sent: 0,
            attempts: 0,
            retries: 0,
            failed: 0,
            handled: HashSet::new(),
            reasons: HashMap::new(),
            marks: VecDeque::new(),
            deaths: 0,
            running: false,
            port: None,
            state: State::default(),
            told: 0,
            is_outage: false,
            ended: false,
            hopeless: None,
            happened: VecDeque::new(),
            happenings: 0,
        }
    }

    /// How long it has been.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// How many orders were handled.
    pub(crate) fn handled(&self) -> usize {
        self.handled.len()
    }

    /// How many of the orders that were sent are handled or open letters. Of letters the worker tells: one that died may have
    /// kept a letter and not come to write that into the journal.
    pub(crate) fn settled(&self) -> u64 {
        self.handled.len() as u64 + self.state.open()
    }

    /// Orders handled per second, lately.
    pub(crate) fn rate(&self) -> f64 {
        let (Some((then, before)), Some((now, after))) = (self.marks.front(), self.marks.back()) else {
            return 0.0;
        };
        let over = now.duration_since(*then).as_secs_f64();
        if over < 0.1 { 0.0 } else { (after - before) as f64 / over }
    }

    /// What happened lately, the oldest first.
    pub(crate) fn happened(&self) -> impl DoubleEndedIterator<Item = &Happened> {
        self.happened.iter()
    }

    /// What happened since so many things had happened, and how many have by now.
    pub(crate) fn since(&self, before: u64) -> (Vec<Happened>, u64) {
        let new = usize::try_from(self.happenings - before).unwrap_or(usize::MAX).min(self.happened.len());
        (self.happened.iter().skip(self.happened.len() - new).cloned().collect(), self.happenings)
    }

    /// Notes something that happened.
    pub(crate) fn note(&mut self, kind: Kind, text: impl Into<String>) {
        if self.happened.len() == KEPT {
            self.happened.pop_front();
        }
        self.happened.push_back(Happened { after: self.elapsed(), kind, text: text.into() });
        self.happenings += 1;
    }

    /// Takes in what was written to the journal.
    pub(crate) fn read(&mut self, entries: &[Entry]) {
        for entry in entries {
            self.take(entry);
        }
        let now = Instant::now();
        self.marks.push_back((now, self.handled.len()));
        while self.marks.front().is_some_and(|(then, _)| now.duration_since(*then) > RATE_OVER) {
            self.marks.pop_front();
        }
    }

    fn take(&mut self, entry: &Entry) {
        let Entry { id, fact, .. } = entry;
        match fact {
            Fact::Begun { attempt, .. } => {
                self.attempts += 1;
                self.retries += u64::from(*attempt > 1);
            }
            Fact::Done => {
                self.reasons.remove(id);
                self.handled.insert(id.clone());
            }
            Fact::Failed { reason } => {
                self.failed += 1;
                self.reasons.insert(id.clone(), reason.clone());
                // Of an outage there are many; the letters and the groups tell of them.
                if reason == "TIMEOUT" {
                    self.note(Kind::Warning, format!("{} failed: {reason}; tried again soon", name(id)));
                }
            }
            Fact::Due(_) => {}
            Fact::GaveUp => {
                self.reasons.entry(id.clone()).or_insert_with(|| "CRASHED".to_owned());
            }
            Fact::Letter(state) => match state.as_str() {
                "retrying" => self.note(
                    Kind::Warning,
                    format!("{} moves to the store, to be retried there in order", name(id)),
                ),
                "dead" => {
                    let reason = self.reasons.get(id).map_or("CRASHED", String::as_str);
                    self.note(Kind::Bad, format!("{} is a dead letter: {reason}", name(id)));
                }
                _ => {}
            },
            Fact::Closed(state) => self.note(Kind::Good, format!("{} {state}", name(id))),
        }
    }

    /// Takes in what became of the worker.
    pub(crate) fn hear(&mut self, news: News) {
        match news {
            News::Report(Report::Ready { port }) => {
                if self.deaths > 0 {
                    self.note(Kind::Good, "the process runs again, and goes on where it was");
                }
                self.running = true;
                self.port = Some(port);
            }
            News::Report(Report::State(state)) => {
                self.state = *state;
                self.told += 1;
            }
            News::Report(Report::Said(text)) => self.note(Kind::Done, text),
            News::Died { how, .. } => {
                self.deaths += 1;
                self.running = false;
                self.note(Kind::Bad, format!("the process died, {how}; it is started again"));
            }
            News::Ended => self.ended = true,
            News::Hopeless(why) => self.hopeless = Some(why),
        }
    }
}

/// An order in words: its number and its customer.
fn name(id: &str) -> String {
    match orders::number_of(id) {
        Some(number) => format!("order {number} of {}", orders::customer(number)),
        None => id.to_owned(),
    }
}
