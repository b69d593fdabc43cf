//! Operators' acts and annotations.

use lazaret_core::Letter;
use lazaret_core::letter::LetterId;
use lazaret_core::store::rules::{self, Head, LetterLookup, LetterView, RestoreView, SequenceChange};
use lazaret_core::store::{Act, Actor, Change, DigestKey, KeptEdits};

use crate::error::{Fault, Work};
use crate::letter_row::{HeldLetter, select_letter};
use crate::sequence_row::OpenSequence;
use crate::store::{Queue, first};
use crate::transaction::Transaction;
use crate::unit::NewEdit;
use crate::values::{bound, text, unsigned};

/// Not locked: a sequence is locked before its letters. A letter that leaves its sequence meanwhile is looked up again.
const PEEK: &str = select_letter!(light "FROM letters l WHERE l.id = $1 AND l.qid = $2");
const FREE_INDEX: &str = "SELECT i FROM generate_series($2::bigint, $2::bigint + 65536) AS i
    WHERE NOT EXISTS (SELECT 1 FROM letters WHERE sid = $1 AND idx = i) ORDER BY i LIMIT 1";
const OUT_OF_ORDER: &str = "SELECT 1 FROM letters WHERE sid = $1 AND stream = $2 AND partition = $3
    AND ((idx < $4 AND position > $5) OR (idx > $4 AND position < $5)) LIMIT 1";
const PAYLOAD: &str = "SELECT payload FROM payloads WHERE lid = $1";
const KEPT: &str =
    "SELECT kept, (SELECT original IS NOT DISTINCT FROM $3 FROM edits WHERE lid = $1 AND number = 1)
    FROM edits WHERE lid = $1 AND number = $2";

impl Transaction<'_> {
    /// A letter with its sequence, both locked, and the time after that.
    pub(crate) async fn lock_letter(
        &mut self,
        queue: &Queue,
        id: LetterId,
        operation: &'static str,
    ) -> Work<(HeldLetter, Option<OpenSequence>)> {
        let rows = self.query(PEEK, &[&id.as_uuid(), &queue.qid]).await?;
        let peeked = first(&rows, |row| HeldLetter::read(row, &queue.name))?;
        let open = match &peeked {
            Some(held) if !held.is_purged() => self.sequence(queue, &held.letter.sequence).await?,
            _ => None,
        };
        let held = match &peeked {
            Some(_) => self.letter(queue, id).await?,
            None => LetterLookup::Absent,
        };
        if let (LetterLookup::Letter(held), Some(peeked)) = (&held, &peeked)
            && held.letter.sequence != peeked.letter.sequence
        {
            return Err(Fault::Interfered);
        }
        self.read_clock().await?;
        Ok((held.into_result(&queue.name, id, operation)?, open))
    }

    pub(crate) async fn act(&mut self, queue: &Queue, id: LetterId, act: Act, by: &Actor) -> Work<Letter> {
        let held = self.act_on(queue, id, act, by).await?;
        self.write_rows().await?;
        self.whole(queue, held.lid).await
    }

    /// Performs an act.
    pub(crate) async fn act_on(
        &mut self,
        queue: &Queue,
        id: LetterId,
        act: Act,
        by: &Actor,
    ) -> Work<HeldLetter> {
        let (held, open) = self.lock_letter(queue, id, "act").await?;
        let now = self.now();
        if act == Act::Restore {
            return self.restore(queue, held, open, by).await;
        }
        let next = self.behind(queue, open.as_ref(), &held.view()).await?;
        let row = open.as_ref().map(|open| &open.row);
        let effects = rules::act(act, &held.letter, row, next, by, now)?;
        self.unit.apply(queue, held, effects, None, now)
    }

    /// The letter behind this one, if this one is the head.
    pub(crate) async fn behind(
        &self,
        queue: &Queue,
        open: Option<&OpenSequence>,
        letter: &LetterView,
    ) -> Work<Option<Head>> {
        let Some(open) = open.filter(|open| open.row.head.index == letter.index) else { return Ok(None) };
        let next = self.first_from(queue, open.sid, letter.index + 1).await?;
        Ok(next.map(|next| next.view().head(self.now())))
    }

    async fn restore(
        &mut self,
        queue: &Queue,
        held: HeldLetter,
        open: Option<OpenSequence>,
        by: &Actor,
    ) -> Work<HeldLetter> {
        let (now, sequence) = (self.now(), held.letter.sequence.clone());
        let slot = match &open {
            None => rules::place_restored(&sequence, &held.letter, None, now)?,
            Some(open) => {
                let view = self.restore_view(open, &held.letter).await?;
                rules::place_restored(&sequence, &held.letter, Some(&view), now)?
            }
        };
        let number = self.numbers(1).await?.into_iter().next();
        let number = number.ok_or_else(|| Fault::Corrupt("the server gave no number".to_owned()))?;
        let index = self.index_at(queue, &sequence, slot, number).await?;
        let row = self.unit.sequence(queue, &sequence).map(|open| open.row.clone());
        let paused = row.is_none() && self.is_paused(queue, &sequence).await?;
        let effects = rules::restore(&held.letter, index, row.as_ref(), paused, by, now);
        self.unit.apply(queue, held, effects, Some(number), now)
    }

    /// The sequence into which a letter is restored.
    async fn restore_view<'o>(&self, open: &'o OpenSequence, letter: &Letter) -> Work<RestoreView<'o>> {
        let (message, position) = (&letter.message, &letter.message.position);
        let rows = self.query(FREE_INDEX, &[&open.sid, &bound(letter.index)]).await?;
        let free: Option<i64> = first(&rows, |row| Ok(row.try_get(0)?))?;
        let free = free.ok_or_else(|| Fault::Corrupt(format!("sequence {} has no free index", open.name)))?;
        let (stream, partition) = (text(message.stream.as_str()), position.partition_number().stored());
        let offset = bound(position.offset);
        let rows = self.query(OUT_OF_ORDER, &[&open.sid, &stream, &partition, &free, &offset]).await?;
        let out_of_order = !rows.is_empty();
        let later = match out_of_order {
            true => self.first_later(&[(open.sid, letter)]).await?.pop().flatten(),
            false => None,
        };
        Ok(RestoreView { row: &open.row, free: unsigned(free)?, out_of_order, later })
    }

    /// Changes the annotations of a letter. The earlier edits are neither read nor written.
    pub(crate) async fn change(
        &mut self,
        queue: &Queue,
        id: LetterId,
        change: &Change,
        by: &Actor,
        key: &DigestKey,
    ) -> Work<Letter> {
        let (mut held, mut open) = self.lock_letter(queue, id, "change").await?;
        open = open.filter(|_| held.letter.state.is_open());
        let now = self.now();
        rules::check_change(change, &held.letter, open.as_ref().map(|open| &open.row), now)?;
        if change.is_edit() {
            let rows = self.query(PAYLOAD, &[&held.lid]).await?;
            let payload: Option<Vec<u8>> = first(&rows, |row| Ok(row.try_get(0)?))?.flatten();
            let message =
                lazaret_core::Message { payload: payload.map(Into::into), ..(*held.letter.message).clone() };
            held.letter.message = message.into();
        }
        let kept = self.kept_edits(&held, change).await?;
        // Refusals precede any write.
        let (line, edit) = change.apply_after(kept, &mut held.letter, by, key, now)?;
        if change.parks(held.letter.state) {
            let parked = self.act_on(queue, id, Act::Park, by).await?;
            (held.letter.state, held.letter.due_at) = (parked.letter.state, parked.letter.due_at);
        }
        if let Some(edit) = edit {
            held.edits += 1;
            let kept = kept.bytes.saturating_add(edit.original.as_ref().map_or(0, |original| original.len()));
            self.unit.edits.push(NewEdit { lid: held.lid, number: held.edits, kept, edit });
            self.unit.payloads.push((held.lid, held.letter.message.payload.clone()));
        }
        let open = self.unit.sequence(queue, &held.letter.sequence).filter(|_| open.is_some());
        if let Some(open) = open.filter(|open| open.row.head.index == held.letter.index) {
            let row = open.row.changed(&held.view(), now);
            self.unit.change_sequence(queue, &held.letter.sequence, None, SequenceChange::Put(row))?;
        }
        let lid = held.lid;
        self.unit.audit.push(line);
        self.unit.letters.insert(lid, held);
        self.write_rows().await?;
        self.whole(queue, lid).await
    }

    /// What a change has to know of the earlier edits.
    async fn kept_edits(&self, held: &HeldLetter, change: &Change) -> Work<KeptEdits> {
        let (Change::Payload(payload) | Change::HeldPayload(payload), 1..) = (change, held.edits) else {
            return Ok(KeptEdits::default());
        };
        let rows = self.query(KEPT, &[&held.lid, &held.edits, &payload.as_deref()]).await?;
        let in_memory = |number: i64| unsigned(number).map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let kept = first(&rows, |row| {
            let reverts: Option<bool> = row.try_get(1)?;
            Ok(KeptEdits {
                edits: in_memory(held.edits)?,
                bytes: in_memory(row.try_get(0)?)?,
                reverts: reverts.unwrap_or_default(),
            })
        })?;
        kept.ok_or_else(|| Fault::Corrupt(format!("the edits of letter {} are missing", held.letter.id)))
    }

    pub(crate) async fn purge(&mut self, queue: &Queue, id: LetterId, by: &Actor) -> Work<()> {
        let (held, _) = self.lock_letter(queue, id, "purge").await?;
        let effects = rules::purge(&held.view(), Some(by))?;
        let now = self.now();
        self.unit.apply(queue, held, effects, None, now)?;
        Ok(())
    }
    pub(crate) async fn erase(&mut self, queue: &Queue, id: LetterId, by: &Actor) -> Work<Letter> {
        let (held, _) = self.lock_letter(queue, id, "erase").await?;
        let now = self.now();
        let effects = rules::erase(&held.letter, by, now)?;
        let held = self.unit.apply(queue, held, effects, None, now)?;
        self.write_rows().await?;
        self.whole(queue, held.lid).await
    }
}
