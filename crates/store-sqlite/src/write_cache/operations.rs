//! Cached operations: every settlement under their leases counts in them. They are read once and written once for the settlements of a group,
//! not once for each.
//!
//! Only settlements and releases use them. Whoever reads or writes the table of operations otherwise [writes them back](Operations::give_back)
//! first. A request that did so may still be refused: then its savepoint takes the written rows back, and they are changes of the cache again.

use std::collections::HashMap;

use lazaret_core::store::{OperationId, OperationMachine};
use rusqlite::Connection;

use crate::error::{Fault, Work};
use crate::operations::table;

struct Known {
    machine: OperationMachine,
    /// `true` if the file has an earlier state.
    changed: bool,
}

/// The operations with letters in flight that were settled since the last poll.
#[derive(Default)]
pub(crate) struct Operations {
    known: HashMap<OperationId, Known>,
    /// The changes of the current request.
    new: HashMap<OperationId, OperationMachine>,
    /// What the current request has written back: in the file only if the request succeeds.
    given_back: HashMap<OperationId, OperationMachine>,
}

impl Operations {
    /// An operation, as the settlements before have left it.
    pub(crate) fn get(&mut self, connection: &Connection, id: OperationId) -> Work<OperationMachine> {
        if let Some(machine) = self.new.get(&id).or_else(|| self.known.get(&id).map(|known| &known.machine)) {
            return Ok(machine.clone());
        }
        let machine = table::machine(connection, id)?
            .ok_or_else(|| Fault::Corrupt(format!("operation {id} of a lease not found")))?;
        self.known.insert(id, Known { machine: machine.clone(), changed: false });
        Ok(machine)
    }

    /// Changes an operation in the current request.
    pub(crate) fn set(&mut self, machine: OperationMachine) {
        self.new.insert(machine.operation.id, machine);
    }

    /// Keeps the changes of the current request.
    pub(super) fn keep(&mut self) {
        self.given_back.clear();
        for (id, machine) in self.new.drain() {
            self.known.insert(id, Known { machine, changed: true });
        }
    }

    /// Discards the changes of the current request. What it has written back is not in the file.
    pub(super) fn undo(&mut self) {
        self.new.clear();
        for (id, machine) in self.given_back.drain() {
            self.known.insert(id, Known { machine, changed: true });
        }
    }

    /// Forgets what is a copy of the file.
    pub(super) fn forget_copies(&mut self) {
        self.known.retain(|_, known| known.changed);
    }

    /// Writes the changes since the last time.
    pub(super) fn write(&mut self, connection: &Connection) -> Work<()> {
        for known in self.known.values_mut().filter(|known| known.changed) {
            table::write_operation(connection, &known.machine)?;
            known.changed = false;
        }
        Ok(())
    }

    /// Writes the changes and forgets all operations, for a request that uses the table.
    pub(crate) fn give_back(&mut self, connection: &Connection) -> Work<()> {
        for known in self.known.values().filter(|known| known.changed) {
            table::write_operation(connection, &known.machine)?;
        }
        let changed = self.known.drain().filter(|(_, known)| known.changed);
        self.given_back.extend(changed.map(|(id, known)| (id, known.machine)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use lazaret_core::Timestamp;
    use lazaret_core::store::{Action, Actor, Outcome, Plan, PlanId, RolloutPolicy, plan_hash};

    use super::*;
    use crate::options::Options;
    use crate::schema;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn inserted(connection: &Connection) -> OperationMachine {
        let by = Actor::new("ada", "cli", "test");
        let plan = Plan {
            id: PlanId(1),
            action: Action::Retry,
            query: None,
            letters: 3,
            sequences: 3,
            followers: 0,
            excluded: Vec::new(),
            hash: plan_hash(Action::Retry, []),
            by: by.clone(),
            frozen_at: NOW,
            expires_at: Timestamp::MAX,
        };
        let rollout = RolloutPolicy::unlimited();
        let mut machine = OperationMachine::begin(OperationId(0), &plan, &rollout, &by, NOW).unwrap();
        machine.operation.id = table::insert_operation(connection, &machine).unwrap();
        machine
    }

    #[test]
    fn what_a_refused_request_wrote_back_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let connection = schema::open_file(&folder.path().join("letters.db"), &Options::default()).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        let mut machine = inserted(&connection);
        let (id, mut cache) = (machine.operation.id, Operations::default());
        machine.count(Outcome::Ok, 1, NOW);
        cache.get(&connection, id).unwrap();
        cache.set(machine);
        cache.keep();
        let stored = || table::machine(&connection, id).unwrap().unwrap().operation.ok;
        for refused in [true, false] {
            connection.execute_batch("SAVEPOINT request").unwrap();
            cache.give_back(&connection).unwrap();
            assert_eq!(stored(), 1);
            if refused {
                cache.undo();
                connection.execute_batch("ROLLBACK TO request").unwrap();
                assert_eq!(stored(), 0);
            } else {
                cache.keep();
            }
            connection.execute_batch("RELEASE request").unwrap();
            assert_eq!(cache.get(&connection, id).unwrap().operation.ok, 1, "refused: {refused}");
        }
        cache.write(&connection).unwrap();
        assert_eq!(stored(), 1);
    }
}
