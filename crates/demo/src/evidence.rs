//! Collects the evidence after a demo: the orders as sent, the journal, the stored letters and the pages
//! of the console.

use std::collections::HashMap;

use lazaret::prelude::*;
use lazaret::query::Query;
use lazaret::sqlite::SqliteStore;
use lazaret::store::{Operations, Triage};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::console_pages::ConsolePages;
use crate::error::Error;
use crate::folder::Folder;
use crate::journal::{Entry, Reader, fnv1a};

/// The page size of letters and entries.
const PAGE: usize = 500;

/// The evidence after a demo.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    /// The orders, in the order sent.
    pub(crate) sent: Vec<Sent>,
    /// The journal of the handler and the observer.
    pub(crate) journal: Vec<Entry>,
    /// Every stored letter, open or closed.
    pub(crate) letters: Vec<StoredLetter>,
    /// Every operation: its id, actor and reason.
    pub(crate) operations: Vec<(String, String, String)>,
    /// The first audit entry that was changed or removed.
    pub(crate) audit_broken: Option<u64>,
    /// The number of intact audit entries.
    pub(crate) audit_entries: u64,
    /// The pages of the console during the outage.
    pub(crate) console: ConsolePages,
}

/// An order as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) id: String,
    pub(crate) customer: String,
    /// The hash of its payload.
    pub(crate) payload: u64,
}

/// A stored letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredLetter {
    pub(crate) id: String,
    pub(crate) state: LetterState,
    pub(crate) reason: Option<String>,
    pub(crate) crash_attempts: u32,
    /// Whether its history ends with a successful attempt.
    pub(crate) ended_well: bool,
}

#[derive(Deserialize)]
struct Line<'a> {
    id: String,
    key: String,
    #[serde(borrow)]
    payload: &'a RawValue,
}

impl Evidence {
    /// Reads the evidence from the folder of an exited worker, and adds the pages that the console
    /// showed while the worker ran.
    pub(crate) async fn gather(folder: &Folder, console: ConsolePages) -> Result<Self, Error> {
        let unreadable = |error: lazaret::store::StoreError| Error::Letters(error.to_string());
        let store = SqliteStore::open(folder.store(), Default::default())
            .map_err(|error| Error::Letters(error.to_string()))?;
        let check = store.verify_audit().await.map_err(unreadable)?.unwrap_or_default();
        let operations = store.operations(None, PAGE).await.map_err(unreadable)?.operations;
        Ok(Self {
            sent: sent(&std::fs::read_to_string(folder.orders())?)?,
            journal: Reader::new(folder.journal()).read()?,
            letters: letters(&store).await?,
            operations: operations
                .into_iter()
                .map(|done| (done.id.to_string(), done.by.who, done.by.why))
                .collect(),
            audit_broken: check.broken,
            audit_entries: check.intact,
            console,
        })
    }

    /// Returns the ids of each customer's orders, in the order sent.
    pub(crate) fn by_customer(&self) -> HashMap<&str, Vec<&str>> {
        let mut customers = HashMap::<&str, Vec<&str>>::new();
        for sent in &self.sent {
            customers.entry(&sent.customer).or_default().push(&sent.id);
        }
        customers
    }
}

fn sent(text: &str) -> Result<Vec<Sent>, Error> {
    let read = |line| {
        let Line { id, key, payload } = serde_json::from_str(line).map_err(std::io::Error::other)?;
        Ok(Sent { id, customer: key, payload: fnv1a(payload.get().as_bytes()) })
    };
    text.lines().map(read).collect()
}

/// Reads all letters, in any state.
async fn letters(store: &SqliteStore) -> Result<Vec<StoredLetter>, Error> {
    let states: Vec<String> =
        LetterState::ALL.iter().map(|state| format!("state:{}", state.as_str())).collect();
    let query = Query::parse(&states.join(" or ")).map_err(|error| Error::Letters(error.to_string()))?;
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let page = store.find(&query, after.as_deref(), PAGE).await;
        let page = page.map_err(|error| Error::Letters(error.to_string()))?;
        found.extend(page.letters.iter().map(held));
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(found),
        }
    }
}

fn held(letter: &Letter) -> StoredLetter {
    StoredLetter {
        id: letter.message.id.to_string(),
        state: letter.state,
        reason: letter.cause.as_ref().map(|cause| cause.reason.to_string()),
        crash_attempts: letter.crash_attempts,
        ended_well: letter.history.last().is_some_and(|attempt| attempt.failure.is_none()),
    }
}
