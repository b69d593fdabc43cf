//! The thread that a member of a group lives in: it reads ahead, and does what the engine wants.
//!
//! It is the only one who touches the member. It reads ahead no more than a few batches (I7), and goes on serving the group
//! when it may read no more. It does not do so for an engine that is dead: when nobody asks for what comes next, nobody is
//! polled, and the group gives the partitions to others after `max.poll.interval.ms`, as if there were no thread.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lazaret_core::source::{Commit, Source, SourceError, SourceEvent};
use lazaret_core::{Message, Partition};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::membership::Membership;

/// How many batches are read ahead at most, and how many bytes: one batch more than that may be on its way. They are few,
/// so that what was copied is still in the processor's cache when it is handled.
const BATCHES: usize = 6;
const BYTES: usize = 4 * 1024 * 1024;

/// How often the engine asks at least, if it is alive, and how often to look whether it did.
const TICK: Duration = Duration::from_millis(100);
/// An engine that has not asked for so long is taken for dead until it asks again.
const SILENCE: Duration = Duration::from_secs(2);

/// What the engine wants of the member.
pub(crate) enum Command {
    Commit(Commits, oneshot::Sender<Result<(), SourceError>>),
    /// A commit that is told of later, by its number.
    Begin(u64, Commits),
    Pause(Vec<Partition>),
    Resume(Vec<Partition>),
    Rewind(Vec<Partition>),
    Revoked(Vec<Partition>, oneshot::Sender<Result<(), SourceError>>),
    Close(oneshot::Sender<Result<(), SourceError>>),
}

/// Positions, and how much the engine knew when it wanted them committed: it may speak of a partition that has begun anew
/// since, in another log.
pub(crate) struct Commits {
    pub(crate) commits: Vec<Commit>,
    /// How many [changes](is_change) it had taken.
    pub(crate) changes: u64,
}

/// Whether this tells of partitions that come or go.
pub(crate) fn is_change(event: &SourceEvent) -> bool {
    matches!(event, SourceEvent::Assigned(_) | SourceEvent::Lost(_))
}

/// What the member has to tell the engine.
pub(crate) enum Told {
    Event(SourceEvent),
    Trouble(SourceError),
    /// What came of the commit of this number.
    Committed(u64, Result<(), String>),
}

/// What was read and not taken yet, in its order.
pub(crate) struct Read {
    queue: Mutex<Queue>,
    arrived: Notify,
    taken: Notify,
    /// What lies beyond that.
    lag: AtomicU64,
    /// When this was made, and how many milliseconds later the engine asked last.
    made: Instant,
    asked: AtomicU64,
}

#[derive(Default)]
struct Queue {
    told: VecDeque<Told>,
    /// How much of it are messages.
    batches: usize,
    messages: usize,
    bytes: usize,
    /// Nobody reads any more.
    over: bool,
}

impl Queue {
    /// Whether this trouble is still to be told. The client repeats itself, and the engine rests after each: nobody should
    /// have to hear old troubles first.
    fn says(&self, error: &SourceError) -> bool {
        let error = error.to_string();
        let same = |told: &Told| matches!(told, Told::Trouble(known) if known.to_string() == error);
        self.told.iter().any(same)
    }

    /// Whether more may be read.
    fn has_room(&self) -> bool {
        self.batches < BATCHES && self.bytes < BYTES
    }

    /// Whether so much was taken that the reader should be woken. Not for every batch: waking takes as long as reading one.
    fn runs_low(&self) -> bool {
        self.batches <= BATCHES / 2 && self.bytes <= BYTES / 2
    }
}

/// The driver is gone.
pub(crate) fn gone() -> SourceError {
    SourceError::permanent("the source was closed")
}

/// About how many bytes messages have.
fn size(messages: &[Message]) -> usize {
    messages.iter().map(|message| message.payload_len() + message.headers.byte_size()).sum()
}

impl Read {
    pub(crate) fn new() -> Self {
        Self {
            queue: Mutex::default(),
            arrived: Notify::new(),
            taken: Notify::new(),
            lag: AtomicU64::new(0),
            made: Instant::now(),
            asked: AtomicU64::new(0),
        }
    }

    /// The engine asks what comes next.
    fn note_asked(&self) {
        self.asked.store(self.made.elapsed().as_millis() as u64, Ordering::Release);
    }

    /// Whether the engine has asked lately.
    fn is_asked(&self) -> bool {
        let asked = self.made + Duration::from_millis(self.asked.load(Ordering::Acquire));
        asked.elapsed() < SILENCE
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing is half done under this lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put(&self, told: Told) {
        let mut queue = self.queue();
        if let Told::Event(SourceEvent::Messages(messages)) = &told {
            queue.batches += 1;
            queue.messages += messages.len();
            queue.bytes += size(messages);
        }
        if let Told::Trouble(error) = &told
            && queue.says(error)
        {
            return;
        }
        queue.told.push_back(told);
        drop(queue);
        self.arrived.notify_one();
    }

    /// What comes next, if there is anything.
    pub(crate) fn take(&self) -> Option<Told> {
        self.note_asked();
        let mut queue = self.queue();
        let Some(told) = queue.told.pop_front() else {
            return queue.over.then(|| Told::Trouble(gone()));
        };
        if let Told::Event(SourceEvent::Messages(messages)) = &told {
            let ran_low = queue.runs_low();
            queue.batches -= 1;
            queue.messages -= messages.len();
            queue.bytes -= size(messages);
            if !ran_low && queue.runs_low() {
                self.taken.notify_one();
            }
        }
        Some(told)
    }

    /// Waits until something was put in since the last call, and not for long.
    pub(crate) async fn arrived(&self) {
        tokio::select! {
            biased;
            () = self.arrived.notified() => {}
            () = tokio::time::sleep(TICK) => {}
        }
    }

    /// How many messages are known of that were not taken.
    pub(crate) fn lag(&self) -> u64 {
        let ahead = self.queue().messages as u64;
        self.lag.load(Ordering::Acquire) + ahead
    }
}

/// Says that nobody reads any more, however the thread ends.
struct LastWord(Arc<Read>);

impl Drop for LastWord {
    fn drop(&mut self) {
        self.0.queue().over = true;
        self.0.arrived.notify_one();
    }
}

/// Starts the thread of a member. It ends when the member is closed, or when nobody can send commands any more.
pub(crate) fn start(
    membership: Membership,
) -> Result<(mpsc::UnboundedSender<Command>, Arc<Read>), SourceError> {
    let failed = |error: std::io::Error| {
        SourceError::temporary("there is no thread for the Kafka client").with_source(error)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
    let (commands, received) = mpsc::unbounded_channel();
    let read = Arc::new(Read::new());
    let last_word = LastWord(read.clone());
    let read_by_driver = read.clone();
    let (changes, latest) = (0, HashMap::new());
    let driver = Driver { membership, commands: received, read: read_by_driver, begun: 0, changes, latest };
    let run = move || {
        runtime.block_on(driver.run());
        drop(last_word);
    };
    thread::Builder::new().name("lazaret-kafka".to_owned()).spawn(run).map_err(failed)?;
    Ok((commands, read))
}

struct Driver {
    membership: Membership,
    commands: mpsc::UnboundedReceiver<Command>,
    read: Arc<Read>,
    /// The number of the commit that was begun last.
    begun: u64,
    /// How many changes were told, and the latest one of each partition.
    changes: u64,
    latest: HashMap<Partition, u64>,
}

impl Driver {
    async fn run(mut self) {
        loop {
            self.membership.may_read = self.read.queue().has_room();
            tokio::select! {
                biased;
                command = self.commands.recv() => {
                    let Some(command) = command else { return };
                    if self.obey(command).await.is_break() {
                        return;
                    }
                }
                () = self.read.taken.notified(), if !self.membership.may_read => {}
                event = self.membership.next(), if self.read.is_asked() => self.tell(event),
                () = tokio::time::sleep(TICK) => self.publish_lag(),
            }
        }
    }

    fn publish_lag(&self) {
        self.read.lag.store(self.membership.lag().unwrap_or(0), Ordering::Release);
    }

    fn tell(&mut self, event: Result<SourceEvent, SourceError>) {
        if let Ok(event) = &event {
            self.count_change(event);
        }
        // First: nobody may take the messages and see a lag with them in it.
        self.publish_lag();
        self.read.put(match event {
            Ok(SourceEvent::Committed(outcome)) => Told::Committed(self.begun, outcome),
            Ok(event) => Told::Event(event),
            Err(error) => Told::Trouble(error),
        });
    }

    fn count_change(&mut self, event: &SourceEvent) {
        if !is_change(event) {
            return;
        }
        self.changes += 1;
        match event {
            SourceEvent::Assigned(all) => {
                self.latest.extend(all.iter().map(|new| (new.partition.clone(), self.changes)));
            }
            SourceEvent::Lost(partitions) => {
                self.latest.extend(partitions.iter().map(|gone| (gone.clone(), self.changes)));
            }
            _ => {}
        }
    }

    /// Those commits that speak of partitions as they are now.
    fn current(&self, Commits { commits, changes }: Commits) -> Vec<Commit> {
        let known =
            |commit: &Commit| self.latest.get(&commit.partition).is_none_or(|latest| *latest <= changes);
        commits.into_iter().filter(known).collect()
    }

    async fn obey(&mut self, command: Command) -> ControlFlow<()> {
        // Whoever asked may have given up waiting for the answer.
        match command {
            Command::Commit(commits, answer) => {
                let commits = self.current(commits);
                let _ = answer.send(self.membership.commit(commits).await);
            }
            Command::Begin(number, commits) => {
                self.begun = number;
                // An earlier one was given up on, and may still arrive. Reading does not wait for it.
                let commits = self.current(commits);
                if self.membership.begin_commit(commits).is_err() {
                    let error =
                        "the broker has not answered an earlier commit; it will be repeated".to_owned();
                    self.read.put(Told::Committed(number, Err(error)));
                }
            }
            Command::Pause(partitions) => self.membership.pause(&partitions),
            Command::Resume(partitions) => self.membership.resume(&partitions),
            Command::Rewind(partitions) => self.membership.rewind(&partitions),
            Command::Revoked(partitions, answer) => {
                let _ = answer.send(self.membership.revoked(&partitions).await);
            }
            Command::Close(answer) => {
                let _ = answer.send(self.membership.close().await);
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::Position;

    use super::*;

    fn batch(bytes: usize) -> Told {
        let message = Message::new("m", "orders", Position::new(0, 0)).with_payload(vec![0; bytes]);
        Told::Event(SourceEvent::Messages(vec![message]))
    }

    #[test]
    fn a_trouble_waits_once_however_often_it_is_told() {
        let read = Read::new();
        for text in ["down", "down", "away", "down"] {
            read.put(Told::Trouble(SourceError::temporary(text)));
        }
        let mut told = Vec::new();
        while let Some(Told::Trouble(error)) = read.take() {
            told.push(error.to_string());
        }
        assert_eq!(told.len(), 2, "{told:?}");
        read.put(Told::Trouble(SourceError::temporary("down")));
        assert!(read.take().is_some(), "what was heard may be told again");
    }

    #[test]
    fn what_is_read_ahead_is_bounded_in_number_and_in_bytes() {
        // I7
        let read = Read::new();
        for _ in 0..BATCHES {
            assert!(read.queue().has_room());
            read.put(batch(1));
        }
        assert!(!read.queue().has_room() && read.lag() == BATCHES as u64);
        while read.take().is_some() {}
        assert!(read.queue().has_room() && read.lag() == 0);
        read.put(batch(BYTES));
        assert!(!read.queue().has_room());
    }

    #[test]
    fn whoever_asks_after_the_end_is_told_so() {
        let read = Arc::new(Read::new());
        drop(LastWord(read.clone()));
        assert!(matches!(read.take(), Some(Told::Trouble(error)) if !error.is_temporary()));
    }
}
