//! The protocol between session and worker: JSON lines over the worker's standard input and output.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A command to the worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum WorkerCommand {
    /// Starts the worker. This is the first command.
    Start {
        /// The incarnation of the worker, from 1.
        incarnation: u32,
        /// The preferred port of the API. If it is in use, the worker takes another one.
        port: u16,
    },
    /// Replays the orders that were dead-lettered because of the bank.
    Replay,
    /// Settles messages in flight and exits.
    Stop,
}

/// A report from the worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Report {
    /// The worker is running, and serves the API and the console.
    Ready {
        /// The port.
        port: u16,
    },
    /// The current state.
    State(Box<State>),
    /// A message for the log.
    Log(String),
}

/// The state of the store and the consumer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct State {
    /// The number of letters by state.
    pub(crate) letters: BTreeMap<String, u64>,
    /// The number of blocked customers.
    pub(crate) blocked: u64,
    /// The blocked customers whose last activity is the oldest.
    pub(crate) customers: Vec<Blocked>,
    /// The groups with open letters.
    pub(crate) groups: Vec<Group>,
    /// The latest operation.
    pub(crate) operation: Option<Operation>,
    /// The number of orders that are read but not settled.
    pub(crate) in_flight: u64,
    /// The reason why the fuse is blown.
    pub(crate) fuse: Option<String>,
}

impl State {
    pub(crate) fn of(&self, state: &str) -> u64 {
        self.letters.get(state).copied().unwrap_or(0)
    }

    /// Returns the number of open letters.
    pub(crate) fn open(&self) -> u64 {
        ["retrying", "dead", "parked", "quarantined", "waiting"].map(|state| self.of(state)).iter().sum()
    }
}

/// A blocked customer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Blocked {
    pub(crate) customer: String,
    /// The state of the head.
    pub(crate) state: String,
    /// The reason code of the head.
    pub(crate) reason: String,
    /// The number of attempts so far.
    pub(crate) attempts: u32,
    /// The time until the next retry, in milliseconds.
    pub(crate) due_ms: Option<u64>,
    /// The ids of the first waiting orders, in order.
    pub(crate) orders: Vec<String>,
    /// The number of waiting orders.
    pub(crate) count: u64,
}

/// Letters with the same cause.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) id: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// The number of open letters.
    pub(crate) open: u64,
    /// The number of dead letters.
    pub(crate) dead: u64,
    /// The number of open letters waiting behind them.
    pub(crate) behind: u64,
}

/// An operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Operation {
    pub(crate) id: String,
    pub(crate) state: String,
    pub(crate) letters: u64,
    pub(crate) ok: u64,
    pub(crate) failed_again: u64,
    pub(crate) skipped: u64,
    pub(crate) note: Option<String>,
}
