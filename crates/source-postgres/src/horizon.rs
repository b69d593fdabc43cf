//! Finds the ids that are final: no transaction that has drawn one of them can commit any more.
//!
//! Every transaction that draws an id holds a lock on the sequence until it ends. The ids up to the last
//! value of the sequence are therefore final when all transactions have ended that held the lock at a
//! later moment. docs/decisions/0052-outbox-of-postgresql.md has the argument, and lists what could
//! break it.

use std::collections::{BTreeSet, VecDeque};

/// The maximum number of bounds that wait to become final (I7). Further bounds are added when one of
/// them has become final.
const MAX_BOUNDS: usize = 64;

/// The prefix of a prepared transaction that a restarted server has read from its disk. On servers
/// before 14.1, it is the prefix of every prepared transaction.
const RECOVERED: &str = "-1/";

/// An observation of the server. Each part is read by a separate statement, in this order.
#[derive(Clone, Debug)]
pub(crate) struct Observation {
    /// The last id that was drawn.
    pub(crate) last: i64,
    /// The virtual transaction ids of the transactions that hold the lock on the sequence.
    pub(crate) writers: BTreeSet<String>,
    /// The end of the log, including the part that is only in memory.
    pub(crate) log_end: u64,
    /// The end of the log on disk.
    pub(crate) log_flushed: u64,
}

/// Ids up to a bound, and what they still wait for.
#[derive(Debug)]
struct Bound {
    id: i64,
    /// The transactions that may have drawn an id up to the bound.
    writers: BTreeSet<String>,
    /// The end of the part of the log that holds all their commits, once they have ended.
    committed_by: Option<u64>,
}

/// The bound of the final ids, followed by bounds that will become final.
#[derive(Debug)]
pub(crate) struct Horizon {
    last_final: i64,
    bounds: VecDeque<Bound>,
}

impl Horizon {
    /// Creates a horizon at which all ids up to this one are final.
    pub(crate) const fn new(last_final: i64) -> Self {
        Self { last_final, bounds: VecDeque::new() }
    }

    /// Returns the last final id.
    pub(crate) const fn last_final(&self) -> i64 {
        self.last_final
    }

    /// Returns `true` if an observation can make more ids final, with `last` as the last id drawn.
    pub(crate) fn needs_observation(&self, last: i64) -> bool {
        last > self.last_final
    }

    /// Returns the transactions that the next bound waits for.
    pub(crate) fn waits_for(&self) -> impl Iterator<Item = &str> {
        self.bounds.front().into_iter().flat_map(|bound| bound.writers.iter().map(String::as_str))
    }

    /// Updates the bounds with an observation.
    pub(crate) fn observe(&mut self, seen: Observation) {
        // Older servers rename a transaction when it is prepared. A new name may be a transaction that
        // is waited for.
        let is_renamed = seen.writers.iter().any(|writer| writer.starts_with(RECOVERED));
        for bound in self.bounds.iter_mut().filter(|bound| bound.committed_by.is_none()) {
            bound.writers.retain(|writer| seen.writers.contains(writer));
            if bound.writers.is_empty() && !is_renamed {
                bound.committed_by = Some(seen.log_end);
            }
        }
        let newest = self.bounds.back().map_or(self.last_final, |bound| bound.id);
        if seen.last > newest && self.bounds.len() < MAX_BOUNDS {
            let committed_by = seen.writers.is_empty().then_some(seen.log_end);
            self.bounds.push_back(Bound { id: seen.last, writers: seen.writers, committed_by });
        }
        // If a row is read before its commit is on disk, the row may vanish with the server, and its id
        // may be drawn again.
        let is_durable = |bound: &Bound| bound.committed_by.is_some_and(|end| end <= seen.log_flushed);
        // A bound waits for everything that earlier bounds wait for, so the last durable bound counts.
        if let Some(index) = self.bounds.iter().rposition(is_durable) {
            self.last_final = self.bounds[index].id;
            self.bounds.drain(..=index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(last: i64, writers: &[&str]) -> Observation {
        let writers = writers.iter().map(|&writer| writer.to_owned()).collect();
        Observation { last, writers, log_end: 100, log_flushed: 100 }
    }

    #[test]
    fn ids_are_final_at_once_when_nobody_writes() {
        let mut horizon = Horizon::new(0);
        horizon.observe(seen(7, &[]));
        assert_eq!(horizon.last_final(), 7);
        assert!(!horizon.needs_observation(7) && horizon.needs_observation(8));
    }

    #[test]
    fn an_id_waits_for_all_that_wrote_when_it_was_seen() {
        // I1: one of these transactions may hold a lower id.
        let mut horizon = Horizon::new(0);
        horizon.observe(seen(2, &["3/1", "4/1"]));
        horizon.observe(seen(2, &["4/1"]));
        assert_eq!(horizon.last_final(), 0);
        assert_eq!(horizon.waits_for().collect::<Vec<_>>(), ["4/1"]);
        horizon.observe(seen(2, &[]));
        assert_eq!(horizon.last_final(), 2);
    }

    #[test]
    fn transactions_that_began_later_delay_nothing() {
        let mut horizon = Horizon::new(0);
        horizon.observe(seen(2, &["3/1"]));
        horizon.observe(seen(5, &["3/1", "4/1"]));
        horizon.observe(seen(9, &["4/1", "5/1"]));
        assert_eq!(horizon.last_final(), 2, "5 waits for 4/1");
        horizon.observe(seen(9, &["5/1"]));
        assert_eq!(horizon.last_final(), 5);
        horizon.observe(seen(9, &["6/1"]));
        assert_eq!(horizon.last_final(), 9);
    }

    #[test]
    fn the_next_transaction_of_a_connection_is_another_one() {
        let mut horizon = Horizon::new(0);
        horizon.observe(seen(2, &["3/1"]));
        horizon.observe(seen(4, &["3/2"]));
        assert_eq!(horizon.last_final(), 2);
    }

    #[test]
    fn a_transaction_that_got_another_name_is_waited_for() {
        // I1: servers before 14.1 rename a transaction when it is prepared.
        let mut horizon = Horizon::new(0);
        horizon.observe(seen(2, &["3/1"]));
        horizon.observe(seen(2, &["-1/740"]));
        assert_eq!(horizon.last_final(), 0);
        horizon.observe(seen(2, &[]));
        assert_eq!(horizon.last_final(), 2);
    }

    #[test]
    fn an_id_waits_until_its_commit_is_on_disk() {
        let mut horizon = Horizon::new(0);
        horizon.observe(Observation { log_end: 300, log_flushed: 200, ..seen(3, &[]) });
        assert_eq!(horizon.last_final(), 0);
        horizon.observe(Observation { log_end: 400, log_flushed: 299, ..seen(3, &["3/1"]) });
        assert_eq!(horizon.last_final(), 0);
        horizon.observe(Observation { log_end: 500, log_flushed: 300, ..seen(4, &["3/1"]) });
        assert_eq!(horizon.last_final(), 3);
    }

    #[test]
    fn the_bounds_are_bounded() {
        // I7
        let mut horizon = Horizon::new(0);
        for last in 1..1000 {
            horizon.observe(seen(last, &["3/1"]));
        }
        assert_eq!(horizon.bounds.len(), MAX_BOUNDS);
        horizon.observe(seen(1000, &["4/1"]));
        assert_eq!(horizon.last_final(), MAX_BOUNDS as i64);
        horizon.observe(seen(1000, &["4/1"]));
        horizon.observe(seen(1000, &[]));
        assert_eq!(horizon.last_final(), 1000);
    }
}
