//! The state of a running demo, from the journal and the worker's reports. The story and the screen read it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::journal::{Entry, Fact};
use crate::orders;
use crate::protocol::{Report, State};
use crate::supervisor::WorkerEvent;

/// The maximum number of log entries that are kept.
const MAX_LOG: usize = 64;
/// The failure reason of orders while their bank is down.
const OUTAGE_REASON: &str = "DEPENDENCY_UNAVAILABLE";
/// The time window for rates.
const RATE_WINDOW: Duration = Duration::from_secs(2);

/// The kind of a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Good news.
    Good,
    /// A warning.
    Warning,
    /// A failure.
    Bad,
    /// An action of the user or the demo.
    Action,
}

/// The subject of a log entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The demo as a whole.
    Demo,
    /// One order.
    Order,
    /// An order that no retry can save.
    PoisonOrder,
}

/// A log entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogEntry {
    /// The time since the start.
    pub(crate) after: Duration,
    pub(crate) kind: Kind,
    pub(crate) subject: Subject,
    pub(crate) text: String,
}

/// The state of a running demo.
#[derive(Debug)]
pub(crate) struct Dashboard {
    begun: Instant,
    /// The number of orders sent.
    pub(crate) sent: u32,
    /// The number of attempts, then of attempts after an order's first, then of failed attempts.
    pub(crate) attempts: u64,
    pub(crate) retries: u64,
    pub(crate) failed: u64,
    /// The ids of the handled orders.
    handled: HashSet<String>,
    /// The last failure reason of each unhandled order.
    reasons: HashMap<String, String>,
    /// The number of handled orders over time, for the rate.
    marks: VecDeque<(Instant, usize)>,
    /// The number of crashes of the worker.
    pub(crate) deaths: u32,
    /// Whether the worker runs.
    pub(crate) running: bool,
    /// The port of the API and the console.
    pub(crate) port: Option<u16>,
    /// The worker's last state report, followed by the number of reports.
    pub(crate) state: State,
    pub(crate) reports: u64,
    /// Whether the bank is down.
    pub(crate) is_outage: bool,
    /// Whether the worker was stopped and has exited.
    pub(crate) ended: bool,
    /// The reason why the demo cannot continue.
    pub(crate) fatal: Option<String>,
    log: VecDeque<LogEntry>,
    /// The number of log entries, including dropped ones.
    logged: u64,
}

impl Dashboard {
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
            reports: 0,
            is_outage: false,
            ended: false,
            fatal: None,
            log: VecDeque::new(),
            logged: 0,
        }
    }

    /// Returns the time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns the number of handled orders.
    pub(crate) fn handled(&self) -> usize {
        self.handled.len()
    }

    /// Returns the number of orders that are handled or open letters. Letters are counted from the
    /// worker's report, because a crashed worker may have stored a letter without a journal entry.
    pub(crate) fn settled(&self) -> u64 {
        self.handled.len() as u64 + self.state.open()
    }

    /// Returns the recent rate of handled orders per second.
    pub(crate) fn rate(&self) -> f64 {
        let (Some((then, before)), Some((now, after))) = (self.marks.front(), self.marks.back()) else {
            return 0.0;
        };
        let over = now.duration_since(*then).as_secs_f64();
        if over < 0.1 { 0.0 } else { (after - before) as f64 / over }
    }

    /// Returns the recent log entries, oldest first.
    pub(crate) fn log(&self) -> impl DoubleEndedIterator<Item = &LogEntry> {
        self.log.iter()
    }

    /// Returns the log entries after the first `before` ones, and the total number of entries.
    pub(crate) fn since(&self, before: u64) -> (Vec<LogEntry>, u64) {
        let new = usize::try_from(self.logged - before).unwrap_or(usize::MAX).min(self.log.len());
        (self.log.iter().skip(self.log.len() - new).cloned().collect(), self.logged)
    }

    /// Logs an event of the demo as a whole.
    pub(crate) fn note(&mut self, kind: Kind, text: impl Into<String>) {
        self.push(kind, Subject::Demo, text.into());
    }

    /// Logs an event of one order.
    pub(crate) fn note_order(&mut self, kind: Kind, text: impl Into<String>) {
        self.push(kind, Subject::Order, text.into());
    }

    fn push(&mut self, kind: Kind, subject: Subject, text: String) {
        if self.log.len() == MAX_LOG {
            self.log.pop_front();
        }
        self.log.push_back(LogEntry { after: self.elapsed(), kind, subject, text });
        self.logged += 1;
    }

    /// Applies new journal entries.
    pub(crate) fn read(&mut self, entries: &[Entry]) {
        for entry in entries {
            self.apply_entry(entry);
        }
        let now = Instant::now();
        self.marks.push_back((now, self.handled.len()));
        while self.marks.front().is_some_and(|(then, _)| now.duration_since(*then) > RATE_WINDOW) {
            self.marks.pop_front();
        }
    }

    fn apply_entry(&mut self, entry: &Entry) {
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
                // Too many orders fail during an outage to log them all. Letters and groups show them.
                if reason == "TIMEOUT" {
                    self.note_order(Kind::Warning, format!("{} failed: {reason}; retry scheduled", name(id)));
                }
            }
            Fact::Due(_) | Fact::Left => {}
            Fact::LeaseLost => {
                let why = "the process stood still for longer";
                self.note_order(Kind::Warning, format!("lease of {id} lost: {why}; its order runs again"));
            }
            Fact::GaveUp => {
                self.reasons.entry(id.clone()).or_insert_with(|| "CRASHED".to_owned());
            }
            Fact::Letter(state) => match state.as_str() {
                "retrying" => {
                    self.note_order(Kind::Warning, format!("{} stored for an ordered retry", name(id)));
                }
                "dead" => {
                    let reason = self.reasons.get(id).map_or("CRASHED", String::as_str);
                    let subject = match reason {
                        OUTAGE_REASON => Subject::Order,
                        _ => Subject::PoisonOrder,
                    };
                    self.push(Kind::Bad, subject, format!("{} dead-lettered: {reason}", name(id)));
                }
                _ => {}
            },
            Fact::Closed(state) => self.note_order(Kind::Good, format!("{} {state}", name(id))),
        }
    }

    /// Applies an event of the worker.
    pub(crate) fn apply(&mut self, event: WorkerEvent) {
        match event {
            WorkerEvent::Report(Report::Ready { port }) => {
                if self.deaths > 0 {
                    self.note(Kind::Good, "process restarted, continuing from its last commit");
                }
                self.running = true;
                self.port = Some(port);
            }
            WorkerEvent::Report(Report::State(state)) => {
                self.state = *state;
                self.reports += 1;
            }
            WorkerEvent::Report(Report::Log(text)) => self.note(Kind::Action, text),
            WorkerEvent::Crashed { how, .. } => {
                self.deaths += 1;
                self.running = false;
                self.note(Kind::Bad, format!("process crashed ({how}), restarting"));
            }
            WorkerEvent::Ended => self.ended = true,
            WorkerEvent::Fatal(why) => self.fatal = Some(why),
        }
    }
}

/// Formats an order with its number and customer.
fn name(id: &str) -> String {
    match orders::number_of(id) {
        Some(number) => format!("order {number} of {}", orders::customer(number)),
        None => id.to_owned(),
    }
}
