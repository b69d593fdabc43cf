//! Hand-offs, in batches: the letters of many sequences in few commands.
//!
//! One round loads all that the rules need for a batch, asks them for each letter in order, and decides about all sequences by one
//! command. A sequence about which another call decided meanwhile is taken again in the next round.

mod round;

use std::collections::{BTreeMap, BTreeSet};

use bson::doc;
use lazaret_core::letter::Letter;
use lazaret_core::store::rules::{
    self, Entry, FIRST_INDEX, HandOffRequest, HandOffView, INDEX_STEP, LaterLetter, LetterView, Slot,
};
use lazaret_core::store::{ErrorKind, HandOff, Limits, Placed, Result, StoreError};
use lazaret_core::{Partition, QueueName, SequenceId};
use serde::Deserialize;

use self::round::Round;
use crate::commit::{View, next_version};
use crate::database::by_ids;
use crate::documents::batch::split;
use crate::documents::letter::{Held, message_size};
use crate::documents::sequence::SequenceDoc;
use crate::error::{invalid, maybe_done};
use crate::letters::Place;
use crate::store::MongoStore;

/// Maximum number of letters of a round.
const ROUND_LETTERS: usize = 1000;
/// Maximum size of the letters of a round. The document of a sequence holds its new letters until they are written.
const ROUND_BYTES: usize = 6 << 20;
/// Maximum size of the documents of letters that the document of one sequence holds, but for the last one. A payload takes more room there than
/// it has bytes: people read it as a document, too.
const HELD_BYTES: usize = 8 << 20;
/// How much of a letter counts for the size of a round: a larger one is kept in chunks.
const LETTER_BYTES: usize = 1 << 20;

/// The index at the end of a queue for the letter with this number in the order of arrival.
pub(crate) const fn end_index(number: u64) -> u64 {
    FIRST_INDEX + number * INDEX_STEP
}

impl MongoStore {
    pub(crate) async fn take_in(
        &self,
        queue: &QueueName,
        limits: &Limits,
        items: Vec<HandOff>,
    ) -> Result<Vec<Result<Placed>>> {
        let mut answers: Vec<Option<Result<Placed>>> = items.iter().map(|_| None).collect();
        // Which sequences had an item refused, and why.
        let mut refused: BTreeMap<SequenceId, ErrorKind> = BTreeMap::new();
        loop {
            let batch = next_batch(&items, &answers);
            if batch.is_empty() {
                break;
            }
            let placed = Box::pin(self.round(queue, limits, &items, &batch, &mut refused)).await?;
            for (number, answer) in batch.into_iter().zip(placed) {
                answers[number] = answer;
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// One round. `None` for each item that has to be taken again.
    async fn round(
        &self,
        queue: &QueueName,
        limits: &Limits,
        items: &[HandOff],
        batch: &[usize],
        refused: &mut BTreeMap<SequenceId, ErrorKind>,
    ) -> Result<Vec<Option<Result<Placed>>>> {
        let mut round = self.load_round(queue, limits, items, batch).await?;
        let mut refusals = Vec::new();
        let mut answers = Vec::with_capacity(batch.len());
        for number in batch {
            let item = &items[*number];
            let sequence = &item.letter.sequence;
            // The rest of this sequence belongs to the next round.
            if round.views.get(sequence).is_some_and(|view| view.size_of_letters() > HELD_BYTES) {
                answers.push(None);
                continue;
            }
            let earlier = refused.get(sequence).copied();
            let answer = self.decide(&mut round, item, earlier).await;
            if let Err(error) = &answer
                && earlier.is_none()
            {
                refused.insert(sequence.clone(), error.kind());
                refusals.push(sequence.clone());
            }
            answers.push(Some(answer));
        }
        // A batch under way may have revisions up to the one that is answered, and insert its sequences later: it is to do so now, so that
        // they are seen to have changed.
        if answers.iter().any(|answer| matches!(answer, Some(Ok(Placed::NotOpen(_))))) {
            self.finish_batches().await?;
        }
        let under_way: Vec<(Partition, BTreeSet<SequenceId>)> = round
            .rows
            .iter()
            .filter(|(_, (_, sequences))| !sequences.is_empty())
            .map(|(partition, (_, sequences))| (partition.clone(), sequences.clone()))
            .collect();
        let late = if self.admit_all(queue, &mut round).await? {
            self.decide_all(round.views).await?
        } else {
            // A grant has changed meanwhile: nothing was decided.
            round.views.into_keys().collect()
        };
        for (partition, sequences) in under_way {
            self.leave(queue, &partition, &sequences).await.map_err(maybe_done)?;
        }
        for (answer, number) in answers.iter_mut().zip(batch) {
            if late.contains(&items[*number].letter.sequence) {
                *answer = None;
            }
        }
        // What was refused in a decision that did not happen is asked again.
        refusals.iter().filter(|sequence| late.contains(*sequence)).for_each(|sequence| {
            refused.remove(sequence);
        });
        Ok(answers)
    }

    /// Asks the rules about one letter.
    async fn decide(
        &self,
        round: &mut Round<'_>,
        item: &HandOff,
        refused: Option<ErrorKind>,
    ) -> Result<Placed> {
        let HandOff { letter, placement, grant } = item;
        let own = letter.message.partition();
        let offset = letter.message.position.offset;
        if i64::try_from(offset).is_err() {
            return Err(invalid(format!("message {}: offset {offset} is above 2^63", letter.message.id)));
        }
        // A message that returned from a retry topic was read under the grant of that topic.
        if let Some(grant) = grant {
            let row = round.row_of(&grant.partition).admit(grant)?;
            round.rows.entry(grant.partition.clone()).or_default().0 = row;
        }
        let horizon = round.row_of(&own).horizon;
        let request = HandOffRequest {
            id: letter.id,
            queue: &letter.queue,
            state: letter.state,
            message: &letter.message.id,
            offset,
            placement: *placement,
            granted: grant.is_some(),
        };
        let view = round.views.get(&letter.sequence);
        let asked = HandOffView {
            queue: round.queue,
            held: round.held.get(&letter.id).copied(),
            refused,
            horizon,
            row: view.and_then(|view| view.row.as_ref()),
            sequences: round.sequences,
            revision: round.revision,
            limits: round.limits,
        };
        let entry = rules::hand_off(&request, &asked)?;
        let stores = self.place(round, letter, entry).await?;
        // The horizon rises before the letter is stored: one that is too high costs a lookup, one that is too low a letter.
        if entry.raises_horizon(*placement) {
            let raised = round.row_of(&own).raised(offset);
            round.rows.entry(own).or_default().0 = raised;
        }
        if let (true, Some(grant)) = (stores, grant) {
            let row = round.row_of(&grant.partition);
            let under_way = round.rows.entry(grant.partition.clone()).or_insert((row, BTreeSet::new()));
            under_way.1.insert(letter.sequence.clone());
        }
        Ok(match entry {
            Entry::Held(state) => Placed::Held(state),
            Entry::NotOpen(revision) => Placed::NotOpen(revision),
            Entry::Closed => Placed::Closed,
            Entry::Open => Placed::Opened,
            Entry::Append | Entry::Insert => Placed::Appended,
        })
    }

    /// Stores a new letter in its place, if it gets one.
    async fn place(&self, round: &mut Round<'_>, letter: &Letter, entry: Entry) -> Result<bool> {
        let number = round.next_number;
        let sequence = &letter.sequence;
        let Some(view) = round.views.get_mut(sequence) else { return Ok(false) };
        let slot = match (entry, &view.row) {
            (Entry::Held(_) | Entry::NotOpen(_), _) => return Ok(false),
            (Entry::Insert, Some(_)) if round.moved.contains(sequence) => {
                return Err(one_at_a_time(sequence));
            }
            (Entry::Insert, Some(row)) => {
                if !round.stored.contains_key(sequence) {
                    let mut places = self.places(round.queue, sequence).await?;
                    places.extend(round.added.remove(sequence).unwrap_or_default());
                    places.sort_by_key(Place::index);
                    round.stored.insert(sequence.clone(), places);
                }
                let places = round.stored.get(sequence).map(Vec::as_slice).unwrap_or_default();
                rules::place(sequence, row, first_later(places, letter), view.now)?
            }
            _ => Slot::End,
        };
        let mut letter = letter.clone();
        let end = end_index(number);
        letter.index = match slot {
            Slot::At(index) => index,
            Slot::End => end,
            // Only after a million redeliveries into one gap: the letter needs a call of its own.
            Slot::MoveBehind(_) if view.is_changed() => return Err(one_at_a_time(sequence)),
            Slot::MoveBehind(from) => {
                round.moved.insert(sequence.clone());
                self.move_behind(view, from).await?
            }
        };
        (letter.enqueued_at, letter.last_touched_at) = (view.now, view.now);
        let mut effects = rules::insert(
            &LetterView::of(&letter),
            letter.last_failed_at,
            view.row.as_ref(),
            view.paused,
            view.now,
        );
        if !letter.state.is_open() {
            effects.audit = Some(rules::skip_audit(letter.id, letter.state, letter.cause.as_ref()));
        }
        let (place, id, state) = (Place::of(&letter), letter.id, letter.state);
        view.apply(Held::new(letter, number), effects)?;
        match round.stored.get_mut(sequence) {
            _ if !state.is_open() => {}
            Some(places) => {
                let at = places.partition_point(|other| other.index() < place.index());
                places.insert(at, place);
            }
            None => round.added.entry(sequence.clone()).or_default().push(place),
        }
        round.held.insert(id, state);
        round.next_number += 1;
        round.sequences += u64::from(entry == Entry::Open);
        Ok(true)
    }

    /// Moves the letters from this index on to the end, and returns a free index before them.
    pub(crate) async fn move_behind(&self, view: &mut View, from: u64) -> Result<u64> {
        let moved = self.open_from(view, from, usize::MAX).await?;
        let numbers = moved.len() as u64 + 1;
        let first = self.db().count_up("letters", numbers).await? - numbers + 1;
        for (number, mut held) in (first + 1..).zip(moved) {
            let index = end_index(number);
            if let Some(mut row) = view.row.clone().filter(|row| row.head.index == held.letter.index) {
                row.head.index = index;
                view.put(Some(row));
            }
            held.letter.index = index;
            view.doc.ahead.clear();
            view.write_letter(&held, false)?;
        }
        Ok(end_index(first))
    }

    /// Writes all grants. `false` when one has changed meanwhile.
    async fn admit_all(&self, queue: &QueueName, round: &mut Round<'_>) -> Result<bool> {
        for (partition, (row, sequences)) in std::mem::take(&mut round.rows) {
            let Some(known) = round.grants.remove(&partition) else { continue };
            if !self.admit(queue, known, row, sequences).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Decides about all sequences. Returns those about which another call decided meanwhile.
    pub(crate) async fn decide_all(&self, views: BTreeMap<SequenceId, View>) -> Result<BTreeSet<SequenceId>> {
        let (changed, unchanged): (Vec<_>, Vec<_>) = views.into_values().partition(View::is_changed);
        let mut late = self.not_current(&unchanged).await?;
        let (mut new, mut known, mut chunks) = (Vec::new(), Vec::new(), Vec::new());
        for view in changed {
            let (doc, more) = view.into_write(known.len());
            chunks.extend(more);
            if doc.version == 0 { new.push(doc) } else { known.push(doc) }
        }
        // A single one takes fewer commands by itself.
        if new.len() == 1 {
            known.append(&mut new);
        }
        self.db().insert_all(&self.db().chunks, &chunks).await?;
        let mut is_decided = !known.is_empty();
        late.extend(self.decide_known(known).await?);
        for batch in split(new) {
            let opened = self.open_batch(batch).await;
            late.extend(opened.map_err(|error| if is_decided { maybe_done(error) } else { error })?);
            is_decided = true;
        }
        Ok(late)
    }

    /// Decides about sequences one by one, each with what is left to do in its document. Returns those about which another call
    /// decided meanwhile.
    async fn decide_known(&self, mut docs: Vec<SequenceDoc>) -> Result<BTreeSet<SequenceId>> {
        let under_way = self.under_way().begin(docs.iter().map(|doc| doc.id.clone()).collect());
        let writes = docs.iter_mut().map(next_version).collect::<Result<Vec<_>>>()?;
        let written = self.db().put_all(&self.db().sequences, writes).await?;
        let (mut unfinished, mut late) = (Vec::new(), BTreeSet::new());
        for (doc, written) in docs.into_iter().zip(written) {
            match written {
                true if doc.unfinished => unfinished.push(doc),
                true => {}
                false => drop(late.insert(doc.sequence)),
            }
        }
        if !unfinished.is_empty() {
            Box::pin(self.carry_out(unfinished)).await.map_err(maybe_done)?;
        }
        drop(under_way);
        Ok(late)
    }

    /// The sequences of views that have another version by now.
    async fn not_current(&self, views: &[View]) -> Result<BTreeSet<SequenceId>> {
        #[derive(Deserialize)]
        struct VersionDoc {
            #[serde(rename = "_id")]
            id: String,
            version: i64,
        }
        if views.is_empty() {
            return Ok(BTreeSet::new());
        }
        let ids: Vec<String> = views.iter().map(|view| view.doc.id.clone()).collect();
        let versions: Vec<VersionDoc> = by_ids(&self.db().sequences, &ids, doc! { "version": 1 }).await?;
        let versions: BTreeMap<String, i64> = versions.into_iter().map(|doc| (doc.id, doc.version)).collect();
        let is_late =
            |view: &&View| versions.get(&view.doc.id).copied().unwrap_or_default() != view.doc.version;
        Ok(views.iter().filter(is_late).map(|view| view.doc.sequence.clone()).collect())
    }
}

fn one_at_a_time(sequence: &SequenceId) -> StoreError {
    let context = format!("letters of {sequence} are being moved: hand it off again");
    StoreError::not_done(ErrorKind::Conflict, "hand_off", context)
}

/// The items of the next round: those without an answer, up to a size. A message that comes twice waits for its first answer.
fn next_batch(items: &[HandOff], answers: &[Option<Result<Placed>>]) -> Vec<usize> {
    let (mut batch, mut bytes, mut ids) = (Vec::new(), 0, BTreeSet::new());
    for (number, item) in items.iter().enumerate().filter(|(number, _)| answers[*number].is_none()) {
        bytes += message_size(&item.letter.message).min(LETTER_BYTES) + 4096;
        let is_full = batch.len() == ROUND_LETTERS || bytes > ROUND_BYTES;
        if !batch.is_empty() && is_full || !ids.insert(item.letter.id) {
            break;
        }
        batch.push(number);
    }
    batch
}

/// The first open letter that is later in the partition than this one. Letters of one partition stand in the order of their
/// offsets, so the search begins at the end and stops at the first that is earlier.
pub(crate) fn first_later(places: &[Place], letter: &Letter) -> Option<LaterLetter> {
    let offset = letter.message.position.offset;
    let mut first = None;
    for (at, place) in places.iter().enumerate().rev().filter(|(_, place)| place.is_of_partition(letter)) {
        if place.offset() <= offset {
            break;
        }
        first = Some(at);
    }
    first.map(|at| {
        let before = at.checked_sub(1).map(|before| places[before].index());
        LaterLetter { index: places[at].index(), before }
    })
}
