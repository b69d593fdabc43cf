//! The letters that ended, until they were announced.

use std::collections::BTreeMap;
use std::ops::Bound;

use async_trait::async_trait;
use lazaret_core::QueueName;
use lazaret_core::letter::{LetterId, LetterState};
use lazaret_core::store::{End, EndsPage, Outbox, Result, is_end};

use super::MemoryStore;
use super::queue::Queue;

/// A letter, its final state, and its number of attempts.
type Ended = (LetterId, LetterState, u32);

/// Ends by their numbers.
#[derive(Default)]
pub(super) struct Ends {
    listed: BTreeMap<u64, Ended>,
    last: u64,
}

impl Ends {
    pub(super) fn list(&mut self, ended: Ended) {
        self.last += 1;
        self.listed.insert(self.last, ended);
    }
}

impl Queue {
    fn watch_ends(&mut self) {
        if self.ends.is_some() {
            return;
        }
        // Numbers are unique, also after watching was stopped and started again.
        let mut ends = Ends { last: self.last_end, ..Ends::default() };
        for id in self.arrivals.values() {
            let letter = self.stored(*id);
            if is_end(None, letter.state) {
                ends.list((letter.id, letter.state, letter.attempts));
            }
        }
        self.ends = Some(ends);
    }

    fn unwatch_ends(&mut self) {
        if let Some(ends) = self.ends.take() {
            self.last_end = ends.last;
        }
    }

    fn page_of_ends(&self, after: u64, limit: usize) -> EndsPage {
        let Some(ends) = &self.ends else { return EndsPage::default() };
        let mut later = ends.listed.range((Bound::Excluded(after), Bound::Unbounded));
        let page = later.by_ref().take(limit).map(|(number, (id, state, attempts))| End {
            number: *number,
            id: *id,
            state: *state,
            attempts: *attempts,
            letter: self.letter(*id).cloned(),
        });
        let ends = page.collect();
        EndsPage { ends, left: later.count() as u64 }
    }

    fn forget_ends(&mut self, up_to: u64) {
        if let Some(ends) = &mut self.ends {
            ends.listed = ends.listed.split_off(&up_to.saturating_add(1));
        }
    }
}

#[async_trait]
impl Outbox for MemoryStore {
    async fn watch_ends(&self, queue: &QueueName) -> Result<()> {
        self.change(queue, |queue, _| queue.watch_ends());
        Ok(())
    }

    async fn ends(&self, queue: &QueueName, after: u64, limit: usize) -> Result<EndsPage> {
        Ok(self.ask(queue, |queue| queue.page_of_ends(after, limit)))
    }

    async fn forget_ends(&self, queue: &QueueName, up_to: u64) -> Result<()> {
        self.change(queue, |queue, _| queue.forget_ends(up_to));
        Ok(())
    }

    async fn unwatch_ends(&self, queue: &QueueName) -> Result<()> {
        self.change(queue, |queue, _| queue.unwatch_ends());
        Ok(())
    }
}
