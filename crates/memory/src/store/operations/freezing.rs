//! Freezing: which letters a plan is about, which of them it leaves out, and in which order they have their turn.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::store::{
    Action, Actor, ErrorKind, Exclusion, Plan, PlanRequest, Result, Selection, plan_hash,
};
use lazaret_core::{QueueName, SequenceId};

use super::refused;
use super::table::ItemRow;
use crate::store::queue::Queue;
use crate::store::{State, later};

impl State {
    pub(super) fn freeze(&mut self, request: &PlanRequest, by: &Actor, now: Timestamp) -> Result<Plan> {
        let mut counts = Exclusion::ALL.map(|exclusion| (exclusion, 0));
        let mut left_out = |exclusion: Exclusion| counts[exclusion as usize].1 += 1;
        // The letters that are left, by queue and sequence, in the order of the sequence.
        let mut sequences: BTreeMap<(&QueueName, &SequenceId), BTreeMap<u64, &Letter>> = BTreeMap::new();
        for selected in self.selected(&request.selection, now) {
            let Some(letter) = selected else {
                left_out(Exclusion::NotFound);
                continue;
            };
            match self.exclusion(letter, request) {
                Some(exclusion) => left_out(exclusion),
                None => {
                    let letters = sequences.entry((&letter.queue, &letter.sequence)).or_default();
                    letters.insert(letter.index, letter);
                }
            }
        }
        if request.action == Action::Retry {
            for ((queue, sequence), letters) in &mut sequences {
                let gap = first_gap(&self.queues[*queue], sequence, letters);
                let behind = gap.map(|gap| letters.split_off(&gap)).unwrap_or_default();
                behind.iter().for_each(|_| left_out(Exclusion::Behind));
            }
            sequences.retain(|_, letters| !letters.is_empty());
        }
        let mut ordered: Vec<_> = sequences.into_values().collect();
        ordered.sort_by_key(|letters| {
            let first = letters.values().next();
            first.map(|first| (first.enqueued_at, &first.queue, first.index, &first.sequence))
        });
        let mut items: Vec<ItemRow> = Vec::new();
        for letters in &ordered {
            let last = items.len() + letters.len() - 1;
            items.extend(letters.values().map(|letter| ItemRow {
                queue: letter.queue.clone(),
                sequence: letter.sequence.clone(),
                letter: letter.id,
                state: letter.state,
                last,
                outcome: None,
            }));
        }
        let (letters, sequences) = (items.len() as u64, ordered.len() as u64);
        if letters > request.max_letters {
            let context =
                format!("the plan would be about {letters} letters, more than {}", request.max_letters);
            return refused(ErrorKind::Invalid, "freeze", context);
        }
        let mut excluded: Vec<_> = counts.into_iter().filter(|(_, letters)| *letters > 0).collect();
        excluded.sort_by_key(|(_, letters)| Reverse(*letters));
        self.operations.forget_old(now);
        let plan = Plan {
            id: self.operations.next_plan(),
            action: request.action,
            query: match &request.selection {
                Selection::Query(query) => Some(query.text().to_owned()),
                Selection::Letters(_) => None,
            },
            letters,
            sequences,
            excluded,
            hash: plan_hash(request.action, items.iter().map(|item| item.letter)),
            by: by.clone(),
            frozen_at: now,
            expires_at: later(now, request.valid_for),
        };
        self.operations.insert_plan(plan.clone(), items);
        Ok(plan)
    }

    /// The letters that are selected; `None` for each that was named and is not there.
    fn selected(&self, selection: &Selection, now: Timestamp) -> Vec<Option<&Letter>> {
        match selection {
            Selection::Query(query) => {
                let letters = self.queues.values().flat_map(|queue| queue.letters.values());
                letters.filter(|letter| query.matches(letter, now)).map(|letter| Some(&**letter)).collect()
            }
            Selection::Letters(letters) => {
                let letters: BTreeSet<&(QueueName, LetterId)> = letters.iter().collect();
                letters.into_iter().map(|(queue, id)| self.queues.get(queue)?.letter(*id)).collect()
            }
        }
    }

    /// Why a letter is left out, as far as the letter itself tells.
    fn exclusion(&self, letter: &Letter, request: &PlanRequest) -> Option<Exclusion> {
        let retry = request.action == Action::Retry;
        // Who asks for a state, or names letters, knows what they get.
        let asked = match &request.selection {
            Selection::Query(query) => query.names_state(),
            Selection::Letters(_) => true,
        };
        match letter.state {
            state if !state.is_open() => Some(Exclusion::Closed),
            LetterState::Parked if request.action == Action::Park => Some(Exclusion::Already),
            _ if self.operations.holds(letter.id) => Some(Exclusion::InOperation),
            LetterState::Quarantined if retry && !asked => Some(Exclusion::Quarantined),
            _ if retry && letter.payload_left_out => Some(Exclusion::NoPayload),
            _ => None,
        }
    }
}

/// The index of the first open letter of a sequence that is not among these.
fn first_gap(queue: &Queue, sequence: &SequenceId, letters: &BTreeMap<u64, &Letter>) -> Option<u64> {
    let mut open = queue.open.get(sequence)?.letters.keys();
    open.find(|index| !letters.contains_key(index)).copied()
}
