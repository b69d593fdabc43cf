//! What people do to letters by hand, and what runs out of time.

use bson::doc;
use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::store::rules::{
    self, AuditLine, Effects, Head, LetterView, RestoreView, SequenceRow, Slot,
};
use lazaret_core::store::{
    Act, Actor, Change as Edit, Cleared, DigestKey, ErrorKind, Expired, Result, StoreError, stored_digest_key,
};
use lazaret_core::{QueueName, SequenceId, Timestamp};
use serde::Deserialize;

use crate::commit::View;
use crate::counts::will_expire;
use crate::database::{decode, project};
use crate::documents::letter::Held;
use crate::error::reading;
use crate::indexes::is_number;
use crate::intake::{end_index, first_later};
use crate::store::MongoStore;
use crate::values::nanos;

/// A rule that closes an open letter, or leaves it.
type ClosingRule = fn(&LetterView, &SequenceRow, Option<Head>, Timestamp) -> Option<Effects>;

/// A letter and its sequence.
#[derive(Deserialize)]
struct Candidate {
    #[serde(rename = "_id", with = "crate::values::text")]
    id: LetterId,
    lazaret: CandidateOf,
}

#[derive(Deserialize)]
struct CandidateOf {
    sequence: SequenceId,
}

impl MongoStore {
    /// The letter of a view, by its id. It may have left the sequence before the view was loaded, and was in flight until then.
    async fn known_in(&self, view: &View, id: LetterId, operation: &'static str) -> Result<Held> {
        let queue = &view.doc.queue;
        let held = self.known(queue, id).await?.into_result(queue, id, operation)?;
        if held.letter.sequence != view.doc.sequence {
            let context = format!("letter {id} has just left {}", view.doc.sequence);
            return Err(StoreError::not_done(ErrorKind::Conflict, operation, context));
        }
        Ok(held)
    }

    /// Acts on a letter.
    pub(crate) async fn act_on(
        &self,
        queue: &QueueName,
        id: LetterId,
        act: Act,
        by: &Actor,
    ) -> Result<Letter> {
        let sequence = self.known(queue, id).await?.into_result(queue, id, "act")?.letter.sequence;
        loop {
            let mut view = self.load(queue, &sequence).await?;
            let acted = self.decide_act(&mut view, id, act, by).await;
            if let Some(letter) = self.commit(view, acted).await? {
                return Ok(letter);
            }
        }
    }

    async fn decide_act(&self, view: &mut View, id: LetterId, act: Act, by: &Actor) -> Result<Letter> {
        let held = self.known_in(view, id, "act").await?;
        let effects = if act == Act::Restore {
            let index = self.index_restored(view, &held.letter).await?;
            rules::restore(&held.letter, index, view.row.as_ref(), view.paused, by, view.now)
        } else {
            let next = self.next_of(view, held.letter.index).await?;
            rules::act(act, &held.letter, view.row.as_ref(), next, by, view.now)?
        };
        view.apply(held, effects)
    }

    /// The index of a letter that comes back.
    async fn index_restored(&self, view: &mut View, letter: &Letter) -> Result<u64> {
        let places = self.places(&view.doc.queue, &view.doc.sequence).await?;
        let asked = view.row.as_ref().map(|row| {
            let mut free = letter.index;
            while places.iter().any(|place| place.index() == free) {
                free += 1;
            }
            let out_of_order = places.iter().any(|place| {
                place.is_of_partition(letter)
                    && (place.offset() < letter.message.position.offset) != (place.index() < free)
            });
            RestoreView { row, free, out_of_order, later: first_later(&places, letter) }
        });
        match rules::place_restored(&view.doc.sequence, letter, asked.as_ref(), view.now)? {
            Slot::At(index) => Ok(index),
            Slot::End => Ok(end_index(self.db().count_up("letters", 1).await?)),
            Slot::MoveBehind(from) => self.move_behind(view, from).await,
        }
    }

    pub(crate) async fn edit(
        &self,
        queue: &QueueName,
        id: LetterId,
        edit: &Edit,
        by: &Actor,
    ) -> Result<Letter> {
        let key = stored_digest_key(self).await?;
        let sequence = self.known(queue, id).await?.into_result(queue, id, "change")?.letter.sequence;
        loop {
            let mut view = self.load(queue, &sequence).await?;
            let edited = self.decide_edit(&mut view, id, edit, by, &key).await;
            if let Some(letter) = self.commit(view, edited).await? {
                return Ok(letter);
            }
        }
    }

    async fn decide_edit(
        &self,
        view: &mut View,
        id: LetterId,
        edit: &Edit,
        by: &Actor,
        key: &DigestKey,
    ) -> Result<Letter> {
        let mut held = self.known_in(view, id, "change").await?;
        rules::check_change(edit, &held.letter, view.row.as_ref(), view.now)?;
        let parks = edit.parks(held.letter.state);
        let line = edit.apply(&mut held.letter, by, key, view.now)?;
        if parks {
            let effects = rules::act(Act::Park, &held.letter, view.row.as_ref(), None, by, view.now)?;
            held.letter = view.apply(held.clone(), effects)?;
        }
        let letter = &held.letter;
        let head = view.row.as_ref().filter(|row| letter.state.is_open() && row.head.index == letter.index);
        if let Some(row) = head.map(|row| row.changed(&LetterView::of(letter), view.now)) {
            view.put(Some(row));
        }
        view.write_letter(&held, false)?;
        view.audit(line);
        Ok(held.letter)
    }

    pub(crate) async fn purge_letter(
        &self,
        queue: &QueueName,
        id: LetterId,
        by: Option<&Actor>,
    ) -> Result<()> {
        let sequence = self.known(queue, id).await?.into_result(queue, id, "purge")?.letter.sequence;
        loop {
            let mut view = self.load(queue, &sequence).await?;
            let purged = self.decide_purge(&mut view, id, by).await;
            if self.commit(view, purged).await?.is_some() {
                return Ok(());
            }
        }
    }

    async fn decide_purge(&self, view: &mut View, id: LetterId, by: Option<&Actor>) -> Result<()> {
        let held = self.known_in(view, id, "purge").await?;
        let effects = rules::purge(&LetterView::of(&held.letter), by)?;
        view.apply(held, effects).map(drop)
    }

    pub(crate) async fn erase_letter(&self, queue: &QueueName, id: LetterId, by: &Actor) -> Result<Letter> {
        let sequence = self.known(queue, id).await?.into_result(queue, id, "erase")?.letter.sequence;
        loop {
            let mut view = self.load(queue, &sequence).await?;
            let erased = self.decide_erase(&mut view, id, by).await;
            if erased.is_ok() {
                // First: a call that is cut off after it can be repeated, and an erased letter is not erased again.
                self.erase_digests(id).await?;
            }
            if let Some(letter) = self.commit(view, erased).await? {
                return Ok(letter);
            }
        }
    }

    async fn decide_erase(&self, view: &mut View, id: LetterId, by: &Actor) -> Result<Letter> {
        let held = self.known_in(view, id, "erase").await?;
        let effects = rules::erase(&held.letter, by, view.now)?;
        view.apply(held, effects)
    }

    /// Closes an open letter by a rule that may leave it. `None` when it is not open any more.
    async fn close_by(
        &self,
        queue: &QueueName,
        sequence: &SequenceId,
        id: LetterId,
        rule: ClosingRule,
    ) -> Result<Option<bool>> {
        loop {
            let mut view = self.load(queue, sequence).await?;
            let closed = self.decide_close(&mut view, id, rule).await;
            if let Some(closed) = self.commit(view, closed).await? {
                return Ok(closed);
            }
        }
    }

    async fn decide_close(&self, view: &mut View, id: LetterId, rule: ClosingRule) -> Result<Option<bool>> {
        let is_here = |held: &Held| held.letter.state.is_open() && held.letter.sequence == view.doc.sequence;
        let held = self.letter_of(view, id).await?.filter(is_here);
        let (Some(held), Some(row)) = (held, view.row.clone()) else { return Ok(None) };
        let next = self.next_of(view, held.letter.index).await?;
        match rule(&LetterView::of(&held.letter), &row, next, view.now) {
            Some(effects) => view.apply(held, effects).map(|_| Some(true)),
            None => Ok(Some(false)),
        }
    }

    pub(crate) async fn clear_queue(&self, queue: &QueueName, by: &Actor) -> Result<Cleared> {
        self.catch_up().await?;
        let open = doc! { "lazaret.queue": queue.as_str(), "lazaret.open": true };
        let sort = doc! { "lazaret.sequence": 1, "lazaret.index": 1 };
        let letters: Vec<Candidate> =
            project(&self.db().letters, open, doc! { "lazaret.sequence": 1 }, sort).await?;
        let mut cleared = Cleared { evicted: 0, busy: 0 };
        for Candidate { id, lazaret } in letters {
            match self.close_by(queue, &lazaret.sequence, id, rules::clear).await? {
                Some(true) => cleared.evicted += 1,
                Some(false) => cleared.busy += 1,
                None => {}
            }
        }
        self.write_line(AuditLine::cleared(queue, &cleared, by)).await?;
        Ok(cleared)
    }

    pub(crate) async fn expire_letters(
        &self,
        queue: &QueueName,
        closed_before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Expired> {
        self.catch_up().await?;
        let (now, limit) = (self.now().await?, limit as u64);
        let mut done = Expired::default();
        let filter = will_expire(queue, Some(nanos(now)));
        let found = self.db().letters.rows(|letters| async move {
            let found = letters.find(filter).projection(doc! { "lazaret.sequence": 1 });
            found.sort(doc! { "lazaret.expires": 1 }).await
        });
        let mut found = found.await.map_err(reading)?;
        while let Some(found) = found.next().await.map_err(reading)? {
            let Candidate { id, lazaret } = decode(found)?;
            if done.expired >= limit {
                if self.is_free(queue, &lazaret.sequence, id).await? {
                    done.more = true;
                    return Ok(done);
                }
                continue;
            }
            let closed = self.close_by(queue, &lazaret.sequence, id, rules::expire).await?;
            done.expired += u64::from(closed == Some(true));
        }
        if let Some(end) = closed_before {
            self.purge_closed(queue, end, limit, &mut done).await?;
        }
        if done.purged > 0 {
            self.write_line(AuditLine::purged(queue, done.purged)).await?;
        }
        Ok(done)
    }

    /// Whether an open letter is not in flight.
    async fn is_free(&self, queue: &QueueName, sequence: &SequenceId, id: LetterId) -> Result<bool> {
        let view = self.load(queue, sequence).await?;
        let letter = self.letter_doc(queue, id).await?.filter(|doc| doc.lazaret.open);
        let (Some(letter), Some(row)) = (letter, &view.row) else { return Ok(false) };
        Ok(!row.is_in_flight(letter.view().index, view.now))
    }

    async fn purge_closed(
        &self,
        queue: &QueueName,
        end: Timestamp,
        limit: u64,
        done: &mut Expired,
    ) -> Result<()> {
        let mut closed = is_number();
        closed.insert("$lt", nanos(end));
        let filter =
            doc! { "lazaret.queue": queue.as_str(), "lazaret.open": false, "lazaret.closed": closed };
        let left = usize::try_from(limit.saturating_sub(done.expired)).unwrap_or(usize::MAX - 1);
        let limited = i64::try_from(left + 1).unwrap_or(i64::MAX);
        let found = self.db().letters.rows(move |letters| async move {
            let found = letters.find(filter).projection(doc! { "lazaret.sequence": 1 });
            found.sort(doc! { "lazaret.closed": 1 }).limit(limited).await
        });
        let mut found = found.await.map_err(reading)?;
        while let Some(found) = found.next().await.map_err(reading)? {
            if done.expired + done.purged >= limit {
                done.more = true;
                break;
            }
            self.purge_letter(queue, decode::<Candidate>(found)?.id, None).await?;
            done.purged += 1;
        }
        Ok(())
    }
}
