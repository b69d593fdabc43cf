//! Applies notices to the watermarks and commits positions.

use lazaret_core::source::{Commit, SourceError};
use tokio::time::Instant;

use super::state::{Background, Moved, Stage};
use super::task::Intake;
use crate::events::Event;
use crate::flow::{Fate, Notice};
use crate::telemetry::Counters;

impl Intake {
    pub(super) fn apply_notices(&mut self, notices: &mut Vec<Notice>) {
        let mut fenced = Vec::new();
        for Notice { ticket, fate } in notices.drain(..) {
            let slot = &mut self.slots[ticket.slot as usize];
            if slot.generation != ticket.generation {
                continue;
            }
            self.in_flight -= 1;
            match fate {
                Fate::Settled => slot.tracker.settle(ticket.number),
                Fate::Abandoned => slot.tracker.abandon(),
                Fate::Fenced => {
                    slot.tracker.abandon();
                    fenced.push(ticket.slot as usize);
                }
            }
        }
        fenced.into_iter().for_each(|slot| self.fenced(slot));
        self.next_commit.get_or_insert_with(|| Instant::now() + self.options.commit_interval);
        self.update_window();
    }

    /// Commits the watermarks (I1). Reading continues meanwhile if the source supports it.
    pub(super) async fn begin_commit(&mut self) {
        if self.committing.is_some() {
            // One commit at a time: this one follows when the current one has ended.
            self.next_commit = Some(Instant::now() + self.options.commit_interval);
            return;
        }
        self.next_commit = None;
        let (moved, commits) = self.take_moved(&self.owned());
        if commits.is_empty() {
            return;
        }
        match self.source.begin_commit(commits) {
            Ok(()) => self.committing = Some(moved),
            Err(commits) => self.commit_now(moved, commits).await,
        }
    }

    /// Commits the watermarks and waits for the result.
    pub(super) async fn commit(&mut self) {
        self.next_commit = None;
        self.commit_slots(&self.owned()).await;
    }

    fn owned(&self) -> Vec<usize> {
        (0..self.slots.len()).filter(|slot| self.is_owned(*slot)).collect()
    }

    fn is_owned(&self, slot: usize) -> bool {
        matches!(self.slots[slot].stage, Stage::Live(_) | Stage::Revoking { .. })
    }

    pub(super) async fn commit_slots(&mut self, slots: &[usize]) {
        // The outcome of a commit in progress will not be reported. Its positions count as not
        // committed.
        let begun = self.committing.take().unwrap_or_default();
        self.not_committed(&begun);
        let (moved, commits) = self.take_moved(slots);
        if !commits.is_empty() {
            self.commit_now(moved, commits).await;
        }
    }

    /// Returns the positions of the partitions, out of these, in which a message was settled since the
    /// last call.
    fn take_moved(&mut self, slots: &[usize]) -> (Vec<Moved>, Vec<Commit>) {
        let (mut moved, mut commits) = (Vec::new(), Vec::new());
        for index in slots {
            let slot = &mut self.slots[*index];
            if let Some(position) = slot.tracker.take_moved() {
                let settled_beyond = slot.tracker.settled_beyond();
                let offset = position.as_ref().map(|position| position.offset);
                moved.push(Moved { slot: *index, generation: slot.generation, offset });
                commits.push(Commit { partition: slot.partition.clone(), position, settled_beyond });
            }
        }
        (moved, commits)
    }

    async fn commit_now(&mut self, moved: Vec<Moved>, commits: Vec<Commit>) {
        let outcome = self.source.commit(commits).await;
        self.committed(&moved, outcome);
    }

    pub(super) fn committed(&mut self, moved: &[Moved], outcome: Result<(), SourceError>) {
        match outcome {
            Ok(()) => {
                Counters::add(&self.telemetry.counters.commits, 1);
                self.forget_notes(moved);
            }
            Err(error) => {
                self.telemetry.emit(&Event::CommitFailed { error: &error.to_string() });
                self.not_committed(moved);
            }
        }
    }

    /// Marks positions that were not committed for the next commit.
    fn not_committed(&mut self, moved: &[Moved]) {
        for Moved { slot, generation, .. } in moved {
            let slot = &mut self.slots[*slot];
            if slot.generation == *generation {
                slot.tracker.not_committed();
            }
        }
        if !moved.is_empty() {
            let later = Instant::now() + self.options.commit_interval;
            self.next_commit.get_or_insert(later);
        }
    }

    /// Removes the notes about messages that will not be delivered again. A crash before this does no
    /// harm.
    fn forget_notes(&self, committed: &[Moved]) {
        for Moved { slot, generation, offset } in committed {
            let Some(offset) = offset else { continue };
            let slot = &self.slots[*slot];
            if slot.generation != *generation {
                continue;
            }
            self.flight.committed(&slot.partition, *offset);
            let (Stage::Live(ownership) | Stage::Revoking { ownership: Some(ownership), .. }) = &slot.stage
            else {
                continue;
            };
            for component in &self.components {
                if !ownership.may_forget(component.index, *offset) {
                    continue;
                }
                let (component, partition, offset) = (component.clone(), slot.partition.clone(), *offset);
                self.background.push(Box::pin(async move {
                    let store = &component.store;
                    if let Err(error) = store.forget_attempts(&component.queue, &partition, offset).await {
                        tracing::debug!(%error, "attempt notes not removed");
                    }
                    Background::Done
                }));
            }
        }
    }
}
