//! What the worker and the stage say to each other: one JSON value a line, over the worker's standard input and output.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What the worker is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Told {
    /// Begin. The first thing that it is told.
    Start {
        /// Which life of the worker, from 1.
        life: u32,
        /// Where the API should listen; another place when that is taken.
        port: u16,
    },
    /// Replay the orders that died because of the bank.
    Replay,
    /// Settle what is in flight, and end.
    Stop,
}

/// What the worker says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Report {
    /// It runs, and the API listens here.
    Ready {
        /// The port.
        port: u16,
    },
    /// How things stand.
    State(Box<State>),
    /// Something happened that people want to know.
    Said(String),
}

/// How things stand, as the store and the consumer say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct State {
    /// Letters by state.
    pub(crate) letters: BTreeMap<String, u64>,
    /// How many customers are blocked.
    pub(crate) blocked: u64,
    /// Those that were touched longest ago.
    pub(crate) customers: Vec<Blocked>,
    /// The groups with open letters.
    pub(crate) groups: Vec<Group>,
    /// The latest operation.
    pub(crate) operation: Option<Operation>,
    /// Orders that are read and not settled.
    pub(crate) in_flight: u64,
    /// Why the fuse has blown.
    pub(crate) fuse: Option<String>,
}

impl State {
    pub(crate) fn of(&self, state: &str) -> u64 {
        self.letters.get(state).copied().unwrap_or(0)
    }

    /// How many letters are open.
    pub(crate) fn open(&self) -> u64 {
        ["retrying", "dead", "parked", "quarantined", "waiting"].map(|state| self.of(state)).iter().sum()
    }
}

/// A customer whose orders wait.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Blocked {
    pub(crate) customer: String,
    /// The state of the first order.
    pub(crate) state: String,
    /// Why.
    pub(crate) reason: String,
    /// Attempts so far.
    pub(crate) attempts: u32,
    /// In how many milliseconds it is tried again.
    pub(crate) due_ms: Option<u64>,
    /// The ids of the first orders that wait, in order.
    pub(crate) orders: Vec<String>,
    /// How many wait.
    pub(crate) count: u64,
}

/// Letters with one cause.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) id: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// Open letters.
    pub(crate) open: u64,
    /// Of which so many are dead.
    pub(crate) dead: u64,
    /// Open letters behind them.
    pub(crate) behind: u64,
}

/// A replay.
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
