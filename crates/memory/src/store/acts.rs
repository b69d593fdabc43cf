//! Operators' acts, annotations and expiry.

use jiff::Timestamp;
use lazaret_core::SequenceId;
use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::store::rules::{self, AuditLine, LetterView, RestoreView};
use lazaret_core::store::{Act, Actor, Change, Cleared, DigestKey, Expired, Result};

use super::Step;
use super::queue::Queue;

impl Queue {
    pub(super) fn act(&mut self, id: LetterId, act: Act, by: &Actor, step: &mut Step<'_>) -> Result<Letter> {
        let letter = self.lookup_letter(id).into_result(&self.name, id, "act")?;
        let effects = if act == Act::Restore {
            let letter = letter.clone();
            let slot = self.place_restored(&letter, step.now)?;
            let index = self.index_of(&letter.sequence, slot);
            let (row, paused) = (self.row(&letter.sequence), self.is_paused(&letter.sequence));
            rules::restore(&letter, index, row, paused, by, step.now)
        } else {
            let (row, next) = (self.row(&letter.sequence), self.next_head(letter, step.now));
            rules::act(act, letter, row, next, by, step.now)?
        };
        self.apply(id, effects, step);
        Ok(self.stored(id).clone())
    }

    /// The place of a restored letter.
    fn place_restored(&self, letter: &Letter, now: Timestamp) -> Result<rules::Slot> {
        let view = self.open.get(&letter.sequence).map(|row| {
            let mut free = letter.index;
            while row.letters.contains_key(&free) {
                free += 1;
            }
            let out_of_order = row.letters.iter().any(|(other, id)| {
                let theirs = &self.stored(*id).message;
                theirs.partition() == letter.message.partition()
                    && (theirs.position.offset < letter.message.position.offset) != (*other < free)
            });
            RestoreView { row: &row.state, free, out_of_order, later: self.first_later(letter) }
        });
        rules::place_restored(&letter.sequence, letter, view.as_ref(), now)
    }

    pub(super) fn clear(&mut self, by: &Actor, mut step: Step<'_>) -> Cleared {
        let mut cleared = Cleared { evicted: 0, busy: 0 };
        let sequences: Vec<SequenceId> = self.open.keys().cloned().collect();
        for sequence in sequences {
            let letters: Vec<LetterId> = self.open[&sequence].letters.values().copied().collect();
            for id in letters {
                let letter = self.stored(id);
                let (view, next) = (LetterView::of(letter), self.next_head(letter, step.now));
                let effects = self.row(&sequence).and_then(|row| rules::clear(&view, row, next, step.now));
                match effects {
                    Some(effects) => {
                        self.apply(id, effects, &mut step);
                        cleared.evicted += 1;
                    }
                    None => cleared.busy += 1,
                }
            }
        }
        step.audit.write(step.now, AuditLine::cleared(&self.name, &cleared, by));
        cleared
    }

    pub(super) fn change(
        &mut self,
        id: LetterId,
        change: &Change,
        by: &Actor,
        key: &DigestKey,
        mut step: Step<'_>,
    ) -> Result<Letter> {
        let letter = self.lookup_letter(id).into_result(&self.name, id, "change")?;
        let row = self.row(&letter.sequence);
        rules::check_change(change, letter, row, step.now)?;
        if change.parks(letter.state) {
            // A change that is refused leaves the letter as it is.
            change.apply(&mut letter.clone(), by, key, step.now)?;
            self.act(id, Act::Park, by, &mut step)?;
        }
        let letter = self.letters.get_mut(&id).expect("it was found above");
        let line = change.apply(letter, by, key, step.now)?;
        let letter = (**letter).clone();
        if let Some(row) = self.row(&letter.sequence).filter(|row| row.head.index == letter.index) {
            let row = row.changed(&LetterView::of(&letter), step.now);
            self.put_row(&letter.sequence, row);
        }
        step.audit.write(step.now, line);
        Ok(letter)
    }

    pub(super) fn purge(&mut self, id: LetterId, by: &Actor, mut step: Step<'_>) -> Result<()> {
        let letter = self.lookup_letter(id).into_result(&self.name, id, "purge")?;
        let effects = rules::purge(&LetterView::of(letter), Some(by))?;
        self.apply(id, effects, &mut step);
        Ok(())
    }

    pub(super) fn erase(&mut self, id: LetterId, by: &Actor, mut step: Step<'_>) -> Result<Letter> {
        let letter = self.lookup_letter(id).into_result(&self.name, id, "erase")?;
        let effects = rules::erase(letter, by, step.now)?;
        self.apply(id, effects, &mut step);
        step.operations.erase_digests(id);
        Ok(self.stored(id).clone())
    }

    pub(super) fn expire(
        &mut self,
        closed_before: Option<Timestamp>,
        limit: usize,
        mut step: Step<'_>,
    ) -> Expired {
        let open = self.letters.values().filter(|letter| letter.state.is_open());
        let due =
            open.filter_map(|letter| Some((letter.expires_at.filter(|at| *at <= step.now)?, letter.id)));
        let mut due: Vec<(Timestamp, LetterId)> = due.collect();
        due.sort_unstable();
        let mut done = Expired::default();
        for (_, id) in due {
            let letter = self.stored(id);
            let (view, next) = (LetterView::of(letter), self.next_head(letter, step.now));
            let row = self.row(&letter.sequence);
            let Some(effects) = row.and_then(|row| rules::expire(&view, row, next, step.now)) else {
                continue;
            };
            if done.expired >= limit as u64 {
                done.more = true;
                return done;
            }
            self.apply(id, effects, &mut step);
            done.expired += 1;
        }
        if let Some(end) = closed_before {
            self.purge_closed(end, limit, &mut done, &mut step);
        }
        done
    }

    fn purge_closed(&mut self, end: Timestamp, limit: usize, done: &mut Expired, step: &mut Step<'_>) {
        let old = self.closed_at.iter().filter(|(_, at)| **at < end).map(|(id, at)| (*at, *id));
        let mut old: Vec<(Timestamp, LetterId)> = old.collect();
        old.sort_unstable();
        let room = limit.saturating_sub(usize::try_from(done.expired).unwrap_or(usize::MAX));
        done.more = old.len() > room;
        for (_, id) in old.into_iter().take(room) {
            if let Ok(effects) = rules::purge(&LetterView::of(self.stored(id)), None) {
                self.apply(id, effects, step);
                done.purged += 1;
            }
        }
        if done.purged > 0 {
            step.audit.write(step.now, AuditLine::purged(&self.name, done.purged));
        }
    }
}
