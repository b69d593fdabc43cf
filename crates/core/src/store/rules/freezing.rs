//! Plans: selected letters, exclusions and order.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{later, refuse};
use crate::letter::{Letter, LetterId, LetterState};
use crate::message::QueueName;
use crate::sequence::SequenceId;
use crate::store::{
    Action, Actor, ErrorKind, Exclusion, PayloadDigest, Plan, PlanId, PlanRequest, Result, Selection,
    plan_hash,
};

/// A selected letter.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The letter.
    pub letter: &'a Letter,
    /// `true` if it is part of an unfinished operation and has no outcome there yet.
    pub in_operation: bool,
}

/// The reason to exclude a letter from a plan, as far as it depends on the letter alone.
pub fn exclusion(candidate: &Candidate<'_>, request: &PlanRequest) -> Option<Exclusion> {
    let retry = request.action == Action::Retry;
    // A query with a state, or a list of ids, selects quarantined letters explicitly.
    let asked = match &request.selection {
        Selection::Query(query) => query.names_state(),
        Selection::Letters(_) => true,
    };
    match candidate.letter.state {
        state if !state.is_open() => Some(Exclusion::Closed),
        LetterState::Parked if request.action == Action::Park => Some(Exclusion::Already),
        _ if candidate.in_operation => Some(Exclusion::InOperation),
        LetterState::Quarantined if retry && !asked => Some(Exclusion::Quarantined),
        _ if retry && candidate.letter.payload_left_out => Some(Exclusion::NoPayload),
        _ => None,
    }
}

/// A letter of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenItem {
    /// Its queue.
    pub queue: QueueName,
    /// Its sequence.
    pub sequence: SequenceId,
    /// The letter.
    pub letter: LetterId,
    /// Its state at the freeze.
    pub state: LetterState,
    /// Its payload at the freeze.
    pub digest: PayloadDigest,
    /// The ordinal of the last letter of its sequence.
    pub last: u64,
}

/// A plan under construction.
#[derive(Debug, Default)]
pub struct Freeze<'a> {
    counts: BTreeMap<Exclusion, u64>,
    /// The remaining letters by queue and sequence, in the order of the sequence.
    sequences: BTreeMap<(&'a QueueName, &'a SequenceId), BTreeMap<u64, &'a Letter>>,
    followers: u64,
}

/// A plan and its letters in order.
#[derive(Clone, Debug)]
pub struct Frozen {
    /// The plan.
    pub plan: Plan,
    /// Its letters.
    pub items: Vec<FrozenItem>,
}

impl<'a> Freeze<'a> {
    /// Starts a plan of the selected letters; `None` for each id that was not found.
    pub fn new(request: &PlanRequest, selected: impl IntoIterator<Item = Option<Candidate<'a>>>) -> Self {
        let mut freeze = Self::default();
        for candidate in selected {
            let excluded = candidate.map_or(Some(Exclusion::NotFound), |some| exclusion(&some, request));
            match (excluded, candidate) {
                (None, Some(Candidate { letter, .. })) => {
                    let sequence = freeze.sequences.entry((&letter.queue, &letter.sequence)).or_default();
                    sequence.insert(letter.index, letter);
                }
                (excluded, _) => freeze.leave_out(excluded.unwrap_or(Exclusion::NotFound), 1),
            }
        }
        freeze
    }

    fn leave_out(&mut self, exclusion: Exclusion, letters: u64) {
        *self.counts.entry(exclusion).or_default() += letters;
    }

    /// Excludes letters behind an open letter outside of the plan, which they may not overtake (I2). Replays only.
    /// `open` returns the indexes of the open letters of a sequence, in order.
    #[must_use]
    pub fn without_gaps<I: Iterator<Item = u64>>(
        mut self,
        open: impl Fn(&QueueName, &SequenceId) -> I,
    ) -> Self {
        let mut behind = 0;
        for ((queue, sequence), letters) in &mut self.sequences {
            if let Some(gap) = open(queue, sequence).find(|index| !letters.contains_key(index)) {
                behind += letters.split_off(&gap).len() as u64;
            }
        }
        self.sequences.retain(|_, letters| !letters.is_empty());
        if behind > 0 {
            self.leave_out(Exclusion::Behind, behind);
        }
        self
    }

    /// Counts the letters outside of the plan in its sequences, which may run after it. Not for `park`. `size` returns the number of
    /// open letters of a sequence.
    #[must_use]
    pub fn with_followers(mut self, size: impl Fn(&QueueName, &SequenceId) -> u64) -> Self {
        let behind = self
            .sequences
            .iter()
            .map(|((queue, sequence), letters)| size(queue, sequence).saturating_sub(letters.len() as u64));
        self.followers = behind.sum();
        self
    }

    /// Builds the plan. `Invalid` if it exceeds the maximum number of letters.
    pub fn finish(self, id: PlanId, request: &PlanRequest, by: &Actor, now: Timestamp) -> Result<Frozen> {
        let digest = |letter: &Letter| PayloadDigest::of(letter.message.payload.as_deref());
        self.finish_with(id, request, by, digest, now)
    }

    /// Like [`finish`](Self::finish), for letters whose payloads were not loaded: `digest` returns that of the payload of a letter.
    pub fn finish_with(
        self,
        id: PlanId,
        request: &PlanRequest,
        by: &Actor,
        digest: impl Fn(&Letter) -> PayloadDigest,
        now: Timestamp,
    ) -> Result<Frozen> {
        let mut ordered: Vec<_> = self.sequences.into_values().collect();
        ordered.sort_by_key(|letters| {
            let first = letters.values().next();
            first.map(|first| (first.enqueued_at, &first.queue, first.index, &first.sequence))
        });
        let mut items: Vec<FrozenItem> = Vec::new();
        for letters in &ordered {
            let last = (items.len() + letters.len()) as u64 - 1;
            items.extend(letters.values().map(|letter| FrozenItem {
                queue: letter.queue.clone(),
                sequence: letter.sequence.clone(),
                letter: letter.id,
                state: letter.state,
                digest: digest(letter),
                last,
            }));
        }
        let hash = plan_hash(request.action, items.iter().map(|item| (item.letter, item.digest)));
        let counts = (items.len() as u64, ordered.len() as u64, self.followers, self.counts);
        let plan = plan(id, request, counts, hash, by, now)?;
        Ok(Frozen { plan, items })
    }
}

/// Builds a plan with these numbers of letters, sequences and followers, excluded ones not included. `Invalid` if it exceeds the maximum
/// number of letters. For stores that select in the database.
pub fn plan(
    id: PlanId,
    request: &PlanRequest,
    (letters, sequences, followers, excluded): (u64, u64, u64, BTreeMap<Exclusion, u64>),
    hash: String,
    by: &Actor,
    now: Timestamp,
) -> Result<Plan> {
    if letters > request.max_letters {
        let context = format!("the plan has {letters} letters, the limit is {}", request.max_letters);
        return refuse(ErrorKind::Invalid, "freeze", context);
    }
    let mut excluded: Vec<_> = excluded.into_iter().filter(|(_, letters)| *letters > 0).collect();
    excluded.sort_by_key(|(_, letters)| Reverse(*letters));
    let query = match &request.selection {
        Selection::Query(query) => Some(query.text().to_owned()),
        Selection::Letters(_) => None,
    };
    Ok(Plan {
        id,
        action: request.action,
        query,
        letters,
        sequences,
        followers,
        excluded,
        hash,
        by: by.clone(),
        frozen_at: now,
        expires_at: later(now, request.valid_for),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::message::{Message, Position};

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn letter(key: &str, index: u64, state: LetterState) -> Letter {
        let message = Message::new(format!("{key}-{index}"), "s", Position::new(0, index));
        let mut letter = Letter::new(QueueName::of("c", "c"), key.into(), message.into(), NOW);
        (letter.state, letter.index) = (state, index);
        letter
    }

    fn request(action: Action) -> PlanRequest {
        PlanRequest {
            action,
            selection: Selection::Letters(Vec::new()),
            valid_for: Duration::from_secs(60),
            max_letters: 10,
        }
    }

    fn frozen(action: Action, letters: &[Letter], open: &[u64]) -> Frozen {
        let request = request(action);
        let selected = letters.iter().map(|letter| Some(Candidate { letter, in_operation: false }));
        let freeze = Freeze::new(&request, selected).without_gaps(|_, _| open.iter().copied());
        freeze.finish(PlanId(1), &request, &Actor::engine("test"), NOW).unwrap()
    }

    #[test]
    fn letters_behind_an_excluded_letter_are_excluded() {
        // I2
        let letters = [1, 3, 4].map(|index| letter("k", index, LetterState::Dead));
        let frozen = frozen(Action::Retry, &letters, &[1, 2, 3, 4]);
        assert_eq!((frozen.plan.letters, frozen.plan.excluded), (1, vec![(Exclusion::Behind, 2)]));
        assert_eq!(frozen.items[0].last, 0);
    }

    #[test]
    fn letters_of_a_sequence_are_adjacent_and_hold_the_last_ordinal() {
        let letters = [
            letter("a", 1, LetterState::Dead),
            letter("b", 2, LetterState::Dead),
            letter("a", 3, LetterState::Dead),
        ];
        let request = request(Action::Evict);
        let selected = letters.iter().map(|letter| Some(Candidate { letter, in_operation: false }));
        let frozen =
            Freeze::new(&request, selected).finish(PlanId(1), &request, &Actor::engine("test"), NOW).unwrap();
        let order: Vec<_> = frozen.items.iter().map(|item| (item.sequence.as_str(), item.last)).collect();
        assert_eq!(order, [("a", 1), ("a", 1), ("b", 2)]);
        assert_eq!(frozen.plan.sequences, 2);
    }

    #[test]
    fn a_plan_that_is_too_large_is_refused() {
        let request = PlanRequest { max_letters: 0, ..request(Action::Evict) };
        let one = letter("a", 1, LetterState::Dead);
        let freeze = Freeze::new(&request, [Some(Candidate { letter: &one, in_operation: false }), None]);
        let refused = freeze.finish(PlanId(1), &request, &Actor::engine("test"), NOW).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
    }
}
