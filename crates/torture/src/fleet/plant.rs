//! Planted faults: they show that the checks of a run find what they are for.

use std::sync::Arc;
use std::time::Duration;

use lazaret_core::QueueName;
use lazaret_core::store::{ErrorKind, HandOff, LetterStore, Limits, Placed, Result, Store, StoreError};
use lazaret_store_postgres::PostgresStore;

/// How long a hand-off is on its way. Long enough that a process which is stopped has one, and that the one which takes over has not
/// sent the same when the first one is woken.
pub(super) const ON_ITS_WAY: Duration = Duration::from_secs(2);

/// A fault of the processes of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Hand-offs arrive late, and nobody checks their grants: a process that is woken stores letters of a partition that another one
    /// has taken over.
    IgnoredGrants,
}

impl Plant {
    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::IgnoredGrants => "ignored-grants",
        }
    }

    /// Finds a fault by its name.
    pub fn named(name: &str) -> Option<Self> {
        [Self::IgnoredGrants].into_iter().find(|plant| plant.name() == name)
    }

    /// A store with this fault.
    pub(super) fn in_store(self, store: PostgresStore) -> Arc<dyn Store> {
        match self {
            Self::IgnoredGrants => Arc::new(Ungranted(store)),
        }
    }
}

/// A store to which hand-offs come late, and without their grants.
struct Ungranted(PostgresStore);

lazaret_core::forward_store! {
    impl LetterStore for Ungranted {
        hand_off => Self::hand_off_late;
    }
    impl Operations for Ungranted {}
    impl Triage for Ungranted {}
    impl Audit for Ungranted {}

    inner: |this| &this.0;
    around: |_this, _call, run| run.await;
}

impl Ungranted {
    async fn hand_off_late(
        &self,
        queue: &QueueName,
        limits: &Limits,
        items: Vec<HandOff>,
    ) -> Result<Vec<Result<Placed>>> {
        let (store, queue, limits) = (self.0.clone(), queue.clone(), *limits);
        let items: Vec<HandOff> = items.into_iter().map(|item| HandOff { grant: None, ..item }).collect();
        // It is on its way, whatever becomes of its sender.
        let sent = tokio::spawn(async move {
            tokio::time::sleep(ON_ITS_WAY).await;
            store.hand_off(&queue, &limits, items).await
        });
        let failed = |error: tokio::task::JoinError| {
            StoreError::maybe(ErrorKind::Unavailable, "hand_off", error.to_string())
        };
        sent.await.map_err(failed)?
    }
}
