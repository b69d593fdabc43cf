//! Freezing plans.

use std::collections::BTreeSet;

use jiff::Timestamp;
use lazaret_core::QueueName;
use lazaret_core::letter::{Letter, LetterId};
use lazaret_core::store::rules::{Candidate, Freeze};
use lazaret_core::store::{Action, Actor, Plan, PlanRequest, Result, Selection};

use crate::store::State;

impl State {
    pub(super) fn freeze(&mut self, request: &PlanRequest, by: &Actor, now: Timestamp) -> Result<Plan> {
        self.operations.delete_expired_plans(now);
        let selected = self.selected(&request.selection, now).into_iter().map(|letter| {
            letter.map(|letter| Candidate { letter, in_operation: self.operations.holds(letter.id) })
        });
        let mut freeze = Freeze::new(request, selected);
        if request.action == Action::Retry {
            freeze = freeze.without_gaps(|queue, sequence| {
                let row = self.queues.get(queue).and_then(|queue| queue.open.get(sequence));
                row.into_iter().flat_map(|row| row.letters.keys().copied())
            });
        }
        if request.action != Action::Park {
            freeze = freeze.with_followers(|queue, sequence| {
                self.queues.get(queue).and_then(|queue| queue.row(sequence)).map_or(0, |row| row.count)
            });
        }
        let frozen = freeze.finish(self.operations.next_plan(), request, by, now)?;
        let plan = frozen.plan.clone();
        self.operations.insert_plan(frozen);
        Ok(plan)
    }

    /// The selected letters; `None` for each id that was not found.
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
}
