//! Letters on their way out: what people note on them, what runs out of time, and what is removed for good.

use jiff::Timestamp;
use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::store::{Actor, Change, ErrorKind, Expired, Result, StoreError};

use super::Step;
use super::queue::Queue;

impl Queue {
    pub(super) fn note(
        &mut self,
        id: LetterId,
        change: &Change,
        by: &Actor,
        step: Step<'_>,
    ) -> Result<Letter> {
        const OPERATION: &str = "change";
        let Some(letter) = self.letter(id) else { return Err(self.not_found(id, OPERATION)) };
        if matches!(change, Change::Payload(_)) {
            let why = if !letter.state.is_open() {
                Some(format!("it is {}", letter.state))
            } else {
                self.is_in_work(letter, step.now).then(|| "somebody is working on it".to_owned())
            };
            if let Some(why) = why {
                let context = format!("cannot change the payload of letter {id}: {why}");
                return Err(StoreError::not_done(ErrorKind::Conflict, OPERATION, context));
            }
        }
        let letter = self.stored_mut(id);
        let noted = change.apply(letter, by, step.now)?;
        let changed = letter.clone();
        self.refresh(&changed.sequence);
        let (before, after) = (noted.before.as_deref(), noted.after.as_deref());
        step.audit.write(step.now, by, change.as_str(), id.to_string(), before, after);
        Ok(changed)
    }

    pub(super) fn purge(&mut self, id: LetterId, by: &Actor, step: Step<'_>) -> Result<()> {
        const OPERATION: &str = "purge";
        let Some(letter) = self.letter(id) else { return Err(self.not_found(id, OPERATION)) };
        let before = letter.state;
        if before.is_open() {
            let context = format!("cannot purge letter {id}: it is {before}");
            return Err(StoreError::not_done(ErrorKind::Conflict, OPERATION, context));
        }
        self.forget(id);
        step.audit.write(step.now, by, "purge", id.to_string(), Some(before.as_str()), Some("purged"));
        Ok(())
    }

    pub(super) fn expire(
        &mut self,
        closed_before: Option<Timestamp>,
        limit: usize,
        step: Step<'_>,
    ) -> Expired {
        let mut due: Vec<(Timestamp, LetterId)> = self
            .letters
            .values()
            .filter(|letter| letter.state.is_open())
            .filter_map(|letter| Some((letter.expires_at.filter(|at| *at <= step.now)?, letter.id)))
            .collect();
        due.sort_unstable();
        let mut done = Expired::default();
        for (_, id) in due {
            let letter = self.stored(id);
            if self.is_in_work(letter, step.now) {
                continue;
            }
            if done.expired >= limit as u64 {
                done.more = true;
                return done;
            }
            let sequence = letter.sequence.clone();
            let before = self.close(id, LetterState::Expired, step.now);
            self.refresh(&sequence);
            let (before, after) = (Some(before.as_str()), Some(LetterState::Expired.as_str()));
            let by = Actor::engine("its time ran out");
            step.audit.write(step.now, &by, "expire", id.to_string(), before, after);
            done.expired += 1;
        }
        let Some(end) = closed_before else { return done };
        let mut old: Vec<(Timestamp, LetterId)> =
            self.closed_at.iter().filter(|(_, at)| **at < end).map(|(id, at)| (*at, *id)).collect();
        old.sort_unstable();
        let room = limit.saturating_sub(usize::try_from(done.expired).unwrap_or(usize::MAX));
        done.more = old.len() > room;
        for (_, id) in old.into_iter().take(room) {
            self.forget(id);
            done.purged += 1;
        }
        if done.purged > 0 {
            let by = Actor::engine("the time to keep closed letters ran out");
            let after = format!("{} purged", done.purged);
            step.audit.write(step.now, &by, "purge", self.name.to_string(), None, Some(&after));
        }
        done
    }

    /// Whether a letter is at or before the head of a sequence that somebody works on.
    pub(super) fn is_in_work(&self, letter: &Letter, now: Timestamp) -> bool {
        let row = self.open.get(&letter.sequence);
        row.is_some_and(|row| row.is_leased(now) && letter.index <= row.head_index())
    }

    /// Removes a closed letter. How it ended stays, so that its message is still known (I8).
    fn forget(&mut self, id: LetterId) {
        let letter = self.letters.remove(&id).expect("only a stored letter is forgotten");
        self.closed_at.remove(&id);
        self.uncount(letter.state);
        self.left(letter.cause.map(|cause| cause.fingerprint));
        self.traces.insert(id, letter.state);
    }

    fn not_found(&self, id: LetterId, operation: &'static str) -> StoreError {
        let context = match self.traces.get(&id) {
            Some(state) => format!("letter {id} was {state} and then purged"),
            None => format!("there is no letter {id} in {}", self.name),
        };
        StoreError::not_done(ErrorKind::NotFound, operation, context)
    }
}
