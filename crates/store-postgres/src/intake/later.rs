//! Where a redelivered letter goes: in front of the letters of its partition that are later.

use std::collections::HashMap;

use lazaret_core::letter::LetterId;
use lazaret_core::store::HandOff;
use lazaret_core::store::rules::{self, LaterLetter};
use lazaret_core::{Letter, LetterState, Partition};

use super::partition_arrays;
use crate::error::Work;
use crate::store::Queue;
use crate::transaction::Transaction;
use crate::values::{Columns, bound, unsigned};

/// For each item: behind the last letter of the partition that is not later, all of its letters are later.
pub(crate) const FIRST_LATER: &str = "SELECT u.place, f.idx, f.before
    FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[]) WITH ORDINALITY
        AS u (sid, stream, partition, position, place)
    CROSS JOIN LATERAL (SELECT l.idx, (SELECT b.idx FROM letters b WHERE b.sid = u.sid AND b.idx < l.idx
            ORDER BY b.idx DESC LIMIT 1) AS before
        FROM letters l WHERE l.sid = u.sid AND l.stream = u.stream AND l.partition = u.partition
        AND l.idx > coalesce((SELECT e.idx FROM letters e WHERE e.sid = u.sid AND e.stream = u.stream
            AND e.partition = u.partition AND e.position <= u.position ORDER BY e.idx DESC LIMIT 1), -1)
        ORDER BY l.idx LIMIT 1) f";

/// What letters that may precede stored ones have behind them, by sequence and letter. Holds until the sequence is changed.
pub(super) type LaterLetters = HashMap<i64, HashMap<LetterId, Option<LaterLetter>>>;

impl Transaction<'_> {
    /// Looks for what is behind the items that may precede stored letters, in one round trip. Without such items there is none.
    pub(super) async fn load_later(
        &self,
        queue: &Queue,
        held: &HashMap<LetterId, LetterState>,
        items: &[HandOff],
    ) -> Work<LaterLetters> {
        let mut asked = Vec::new();
        for HandOff { letter, grant, .. } in items.iter().filter(|item| !held.contains_key(&item.letter.id)) {
            let Some(open) = self.unit.sequence(queue, &letter.sequence) else { continue };
            let (offset, known) =
                (letter.message.position.offset, self.grant(queue, &letter.message.partition()));
            if rules::may_precede(grant.is_some(), offset, known.horizon) {
                asked.push((open.sid, letter));
            }
        }
        let mut later = LaterLetters::new();
        let found = self.first_later(&asked).await?;
        for ((sid, letter), found) in asked.into_iter().zip(found) {
            later.entry(sid).or_default().insert(letter.id, found);
        }
        Ok(later)
    }

    /// The first later letter of its partition for each letter, in the sequence with this number. One round trip, and none for no letter.
    pub(crate) async fn first_later(&self, asked: &[(i64, &Letter)]) -> Work<Vec<Option<LaterLetter>>> {
        let mut later = vec![None; asked.len()];
        if asked.is_empty() {
            return Ok(later);
        }
        let sids: Vec<i64> = asked.iter().map(|(sid, _)| *sid).collect();
        let partitions: Vec<Partition> = asked.iter().map(|(_, letter)| letter.message.partition()).collect();
        let (streams, indexes) = partition_arrays(&partitions);
        let offsets: Vec<i64> =
            asked.iter().map(|(_, letter)| bound(letter.message.position.offset)).collect();
        for row in self.query(FIRST_LATER, &[&sids, &streams, &indexes, &offsets]).await? {
            let mut c = Columns::of(&row);
            let place = usize::try_from(c.get::<i64>()? - 1).unwrap_or(usize::MAX);
            let (index, before) = (c.unsigned()?, c.get::<Option<i64>>()?);
            if let Some(later) = later.get_mut(place) {
                *later = Some(LaterLetter { index, before: before.map(unsigned).transpose()? });
            }
        }
        Ok(later)
    }
}
