//! Previews an adoption without writing anything.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use lazaret_core::store::LetterStore;
use lazaret_core::{Message, Timestamp};

use crate::copies::{self, Candidate};
use crate::error::AdoptErrorKind;
use crate::progress::{LISTED_LIMIT, Tally};
use crate::source::{Content, Cursor, DeadLetterSource, Found};
use crate::target::Target;

/// The number of messages among which copies are recognised (I7).
const SEEN_LIMIT: usize = 1 << 20;

/// Reads everything from `start`, and looks up which messages have a letter. Returns the counts and the
/// addresses of unknown records, at most a hundred. `observe` is called with everything that was found.
pub(crate) async fn preview<S, D>(
    store: &S,
    target: &Target,
    source: &mut D,
    start: D::Cursor,
    mut observe: impl FnMut(&Content) + Send,
) -> Result<(Tally, Vec<String>), AdoptErrorKind>
where
    S: LetterStore + ?Sized,
    D: DeadLetterSource<Cursor: Cursor>,
{
    source.open(start).await?;
    let mut counts = Tally { gone: source.deleted(), ..Tally::default() };
    let (mut unknown_at, mut seen) = (Vec::new(), Seen::default());
    loop {
        let batch = source.read().await?;
        if batch.is_empty() {
            return Ok((counts, unknown_at));
        }
        let now = Timestamp::now();
        let mut candidates = Vec::new();
        for Found { address, content, .. } in batch {
            counts.read += 1;
            observe(&content);
            match content {
                Content::Closed => counts.closed += 1,
                Content::Unknown(reason) => {
                    counts.unknown += 1;
                    if unknown_at.len() < LISTED_LIMIT {
                        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
                        unknown_at.push(format!("{address}{reason}"));
                    }
                }
                Content::Letter(letter) if target.is_foreign(&letter) => counts.foreign += 1,
                Content::Letter(letter) => candidates.push(Candidate::new(target, *letter, address, now)),
            }
        }
        let known = copies::find(store, target, candidates.iter_mut().collect(), false).await;
        for (candidate, is_known) in candidates.iter().zip(known.map_err(AdoptErrorKind::Store)?) {
            let is_known = is_known.map_err(AdoptErrorKind::Store)?;
            counts.damaged += u64::from(candidate.is_damaged());
            let is_new = seen.insert(&candidate.letter.message);
            match is_known || !is_new {
                true => counts.already_there += 1,
                false => counts.adopted += 1,
            }
        }
    }
}

/// Recognises copies of a message. It forgets everything when it is full. This works because copies are
/// close to each other: a message fails again soon.
#[derive(Default)]
struct Seen {
    hashes: HashSet<u64>,
    hasher: RandomState,
}

impl Seen {
    /// Returns `true` if the message is new.
    fn insert(&mut self, Message { id, key, payload, .. }: &Message) -> bool {
        if self.hashes.len() >= SEEN_LIMIT {
            self.hashes.clear();
        }
        self.hashes.insert(self.hasher.hash_one((id, key, payload)))
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::Position;

    use super::*;

    #[test]
    fn copies_are_recognised_and_the_memory_is_bounded() {
        // I7
        let mut seen = Seen::default();
        let message = |id: String| Message::new(id, "orders", Position::new(0, 0));
        let [a, b] = ["a", "b"].map(|id| message(id.to_owned()));
        assert!(seen.insert(&a) && seen.insert(&b) && !seen.insert(&a));
        assert!(seen.insert(&a.with_payload("another")), "another message with its id");
        for n in 0..SEEN_LIMIT {
            seen.insert(&message(n.to_string()));
        }
        assert!(seen.hashes.len() <= SEEN_LIMIT);
    }
}
