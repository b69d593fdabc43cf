//! The way from the topic to the store: read, make letters, hand them off, and only then move the checkpoint.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::time::{Duration, Instant};

use lazaret_core::store::{Checkpoints, ErrorKind, HandOff, LetterStore, Placed, Placement, StoreError};
use lazaret_core::{QueueName, Timestamp};

use super::Adoption;
use super::error::{AdoptError, AdoptTrouble};
use super::letter::{Clerk, Found, Made};
use super::progress::{Fate, Report};
use super::topic::Topic;
use crate::record::Reader;

/// How long to wait before the store is asked again: at first, and at most.
const FIRST_REST: Duration = Duration::from_millis(20);
const LONGEST_REST: Duration = Duration::from_secs(2);

/// Runs an adoption: to the end of the topic as it is, or until `shutdown` ends.
pub(super) async fn run<S: LetterStore + Checkpoints + ?Sized>(
    adoption: &Adoption,
    store: &S,
    bounded: bool,
    shutdown: impl Future<Output = ()>,
) -> Result<Report, AdoptError> {
    let mut run = Run::begin(adoption, store).await?;
    let next = run.report.next.clone();
    let topic = Topic::open(adoption.options.clone(), &next, bounded).await;
    let mut topic = topic.map_err(|error| AdoptError::new(error, &run.report))?;
    run.report.miss(topic.gone);
    run.report.left = topic.left();
    let mut shutdown = pin!(shutdown);
    loop {
        let read = tokio::select! {
            biased;
            // What was read and not handed off is read again by the next run.
            () = &mut shutdown => return Ok(run.report),
            read = topic.read() => read,
        };
        let records = read.map_err(|error| AdoptError::new(error, &run.report))?;
        let ended = records.is_empty();
        run.take(records, topic.next()).await?;
        run.report.left = topic.left();
        run.tell();
        if ended {
            return Ok(run.report);
        }
    }
}

/// An adoption under way.
struct Run<'a, S: ?Sized> {
    adoption: &'a Adoption,
    store: &'a S,
    queue: QueueName,
    checkpoint: String,
    clerk: Clerk,
    report: Report,
}

/// A record on its way: what becomes of it, as far as that is known.
struct Entry {
    partition: u32,
    offset: u64,
    address: String,
    /// The fate of a record that needs no letter, or of one whose letter is durable.
    fate: Option<Fate>,
    damaged: bool,
    item: Option<HandOff>,
}

impl<'a, S: LetterStore + Checkpoints + ?Sized> Run<'a, S> {
    async fn begin(adoption: &'a Adoption, store: &'a S) -> Result<Self, AdoptError> {
        let queue = adoption.queue();
        let clerk = Clerk {
            queue: queue.clone(),
            reader: Reader::new(&adoption.options),
            sequencing: adoption.sequencing.clone(),
            apart: adoption.apart,
            group: adoption.group.clone(),
            unknown: adoption.unknown,
            owner: adoption.owner.clone(),
            ttl: adoption.ttl,
        };
        let checkpoint = adoption.checkpoint();
        let loaded = patiently(adoption.patience, || store.load(&checkpoint)).await;
        let loaded =
            loaded.map_err(|error| AdoptError::new(AdoptTrouble::Store(error), &Report::default()))?;
        let mut report = Report::from_checkpoint(loaded.as_ref());
        if adoption.afresh {
            report.next.clear();
        }
        Ok(Self { adoption, store, queue, checkpoint, clerk, report })
    }

    /// Makes these records durable and moves the checkpoint. `next` is where each partition goes on after them.
    async fn take(&mut self, records: Vec<Found>, next: BTreeMap<u32, u64>) -> Result<(), AdoptError> {
        let now = Timestamp::now();
        let mut entries: Vec<Entry> = records.into_iter().map(|found| self.entry(found, now)).collect();
        let stopped = self.hand_off(&mut entries).await;
        // A partition goes on at its first record that is not durable.
        let mut next = next;
        for entry in entries.iter().filter(|entry| entry.fate.is_none()) {
            let first = next.entry(entry.partition).or_insert(entry.offset);
            *first = (*first).min(entry.offset);
        }
        for Entry { partition, offset, address, fate, .. } in entries {
            if let Some(fate) = fate.filter(|_| offset < next[&partition]) {
                self.report.count(fate, || address);
            }
        }
        let moved = self.report.next != next;
        self.report.next = next;
        if moved {
            self.save(now).await?;
        }
        stopped.map_err(|trouble| AdoptError::new(trouble, &self.report))
    }

    fn entry(&self, found: Found, now: Timestamp) -> Entry {
        let (partition, offset, address) = (found.place.index, found.offset, found.address());
        let (fate, damaged, item) = match self.clerk.make(found, now) {
            Made::Unknown => (Some(Fate::Unknown), false, None),
            Made::Foreign => (Some(Fate::Foreign), false, None),
            Made::Letter { letter, damaged } => {
                // It comes from no partition that anybody reads: it carries no grant, and goes to its place by its offset.
                (None, damaged, Some(HandOff { letter: *letter, placement: Placement::Open, grant: None }))
            }
        };
        if fate == Some(Fate::Unknown) {
            tracing::warn!(
                record = address,
                "a record has no failure headers that are known; it is left out"
            );
        }
        Entry { partition, offset, address, fate, damaged, item }
    }

    /// Hands the letters off. What cannot be stored now is tried again for as long as we are patient; what is durable then has
    /// its fate.
    async fn hand_off(&self, entries: &mut [Entry]) -> Result<(), AdoptTrouble> {
        let started = Instant::now();
        let mut rest = FIRST_REST;
        loop {
            let open: Vec<usize> =
                (0..entries.len()).filter(|index| entries[*index].fate.is_none()).collect();
            if open.is_empty() {
                return Ok(());
            }
            let items = open.iter().filter_map(|index| entries[*index].item.clone()).collect();
            let trouble = match self.store.hand_off(&self.queue, &self.adoption.limits, items).await {
                Ok(answers) => settle(entries, &open, answers),
                Err(error) => Some(error),
            };
            let Some(error) = trouble else { continue };
            match error.kind() {
                ErrorKind::Full => return Err(AdoptTrouble::Full(error)),
                kind if !kind.is_temporary() || started.elapsed() >= self.adoption.patience => {
                    return Err(AdoptTrouble::Store(error));
                }
                _ => tokio::time::sleep(rest).await,
            }
            rest = (rest * 2).min(LONGEST_REST);
        }
    }

    async fn save(&self, now: Timestamp) -> Result<(), AdoptError> {
        let checkpoint = self.report.checkpoint(now);
        let saved =
            patiently(self.adoption.patience, || self.store.save(&self.checkpoint, checkpoint.clone())).await;
        saved.map_err(|error| AdoptError::new(AdoptTrouble::Store(error), &self.report))
    }

    /// Tells the listener. One that panics hurts nobody (I10).
    fn tell(&self) {
        if let Some(listener) = &self.adoption.listener
            && catch_unwind(AssertUnwindSafe(|| listener(&self.report))).is_err()
        {
            tracing::warn!("the listener of an adoption panicked");
        }
    }
}

/// Writes down the answers of the store. Gives the worst of its errors: one that does not pass before one that may, and no
/// room before both.
fn settle(
    entries: &mut [Entry],
    open: &[usize],
    answers: Vec<Result<Placed, StoreError>>,
) -> Option<StoreError> {
    let rank = |error: &StoreError| match error.kind() {
        ErrorKind::Full => 2,
        kind => u8::from(!kind.is_temporary()),
    };
    let mut worst: Option<StoreError> = None;
    for (index, answer) in open.iter().zip(answers) {
        let entry = &mut entries[*index];
        let damaged = entry.damaged;
        match answer {
            Ok(Placed::Held(_)) => entry.fate = Some(Fate::AlreadyThere { damaged }),
            Ok(_) => entry.fate = Some(Fate::Adopted { damaged }),
            Err(error) if worst.as_ref().is_none_or(|known| rank(known) < rank(&error)) => {
                worst = Some(error);
            }
            Err(_) => {}
        }
    }
    worst
}

/// Asks the store again while its trouble may pass and we are patient.
async fn patiently<T, F: Future<Output = Result<T, StoreError>>>(
    patience: Duration,
    mut ask: impl FnMut() -> F,
) -> Result<T, StoreError> {
    let started = Instant::now();
    let mut rest = FIRST_REST;
    loop {
        match ask().await {
            Err(error) if error.kind().is_temporary() && started.elapsed() < patience => {
                tokio::time::sleep(rest).await;
                rest = (rest * 2).min(LONGEST_REST);
            }
            answer => return answer,
        }
    }
}
