//! Cached operations: every settlement under their leases counts in them. They are read once and written once for the settlements of a group,
//! not once for each.
//!
//! Only settlements and releases use them. Whoever reads or writes the table of operations otherwise [writes them back](Operations::give_back) first.

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
    pub(crate) fn keep(&mut self) {
        for (id, machine) in self.new.drain() {
            self.known.insert(id, Known { machine, changed: true });
        }
    }

    /// Discards the changes of the current request.
    pub(crate) fn undo(&mut self) {
        self.new.clear();
    }

    /// Writes the changes since the last time.
    pub(crate) fn write(&mut self, connection: &Connection) -> Work<()> {
        for known in self.known.values_mut().filter(|known| known.changed) {
            table::write_operation(connection, &known.machine)?;
            known.changed = false;
        }
        Ok(())
    }

    /// Writes the changes and forgets all operations, for a request that uses the table.
    pub(crate) fn give_back(&mut self, connection: &Connection) -> Work<()> {
        self.write(connection)?;
        self.known.clear();
        Ok(())
    }
}
