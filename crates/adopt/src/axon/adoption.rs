//! Configures and runs the adoption of one processing group.

use std::fmt;
use std::sync::Arc;

use lazaret_core::store::{Checkpoints, LetterStore};
use serde::Serialize;
use tokio_postgres::Client;

use super::table::{DeadLetterTable, EntryCursor, GroupCount};
use crate::error::{self, AdoptErrorKind};
use crate::preview;
use crate::progress::{self, Tally};
use crate::run::Run;
use crate::target::Target;

/// The progress of adopting a processing group.
pub type Report = progress::Report<EntryCursor>;

/// The error of an adoption of a processing group that stopped before its end.
pub type AdoptError = error::AdoptError<EntryCursor>;

type ProgressCallback = dyn Fn(&Report) + Send + Sync;

/// The result of a preview of an adoption.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Preview {
    /// The counts. `adopted` is the number of entries that would become letters.
    pub counts: Tally,
    /// The number of entries per processing group, for at most 100 groups. Includes other groups.
    pub groups: Vec<GroupCount>,
    /// The addresses of unknown entries, at most 100.
    pub unknown_at: Vec<String>,
}

/// Reads Axon's dead letters of one processing group and turns them into letters of a consumer. See the
/// [module documentation](super).
#[derive(Clone)]
pub struct Adoption<'a> {
    client: &'a Client,
    table: Option<String>,
    group: String,
    target: Target,
    progress: Option<Arc<ProgressCallback>>,
}

impl<'a> Adoption<'a> {
    /// Creates an adoption of the dead letters of this processing group into this target. The table is
    /// looked up by [its names](super::TABLES), see [`from_table`](Self::from_table).
    pub fn of(client: &'a Client, group: impl Into<String>, target: Target) -> Self {
        Self { client, table: None, group: group.into(), target, progress: None }
    }

    /// Reads this table instead. Include the schema if it is not on the search path.
    #[must_use]
    pub fn from_table(mut self, table: impl Into<String>) -> Self {
        self.table = Some(table.into());
        self
    }

    /// Sets a callback for the progress. It is called after every batch that is durable.
    #[must_use]
    pub fn on_progress(mut self, callback: impl Fn(&Report) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(callback));
        self
    }

    /// Returns the name of the checkpoint that holds the progress.
    pub fn checkpoint(&self) -> String {
        let table = self.table.as_deref().unwrap_or(super::TABLES[0]);
        format!("adopt/{}/{table}/{}", self.target.queue, self.group)
    }

    /// Adopts the entries of the group.
    ///
    /// # Errors
    /// When the table cannot be read, the store fails, or the queue is full. The error holds the
    /// progress. The next run continues from there.
    pub async fn run<S: LetterStore + Checkpoints + ?Sized>(&self, store: &S) -> Result<Report, AdoptError> {
        let checkpoint = self.checkpoint();
        let mut source = self.source().await.map_err(|error| AdoptError::new(error, &Report::default()))?;
        let run = Run::resume(store, &self.target, &checkpoint).await?;
        let progress = |report: &Report| {
            if let Some(callback) = &self.progress {
                callback(report);
            }
        };
        run.read_all(&mut source, std::future::pending(), progress).await
    }

    /// Returns what [`run`](Self::run) would do. Nothing is written.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub async fn preview<S: LetterStore + ?Sized>(&self, store: &S) -> Result<Preview, AdoptError> {
        let preview = async {
            let mut source = self.source().await?;
            let groups = source.groups().await?;
            let (counts, unknown_at) =
                preview::preview(store, &self.target, &mut source, Default::default(), |_| ()).await?;
            Ok(Preview { counts, groups, unknown_at })
        };
        preview.await.map_err(|kind: AdoptErrorKind| AdoptError::new(kind, &Report::default()))
    }

    async fn source(&self) -> Result<DeadLetterTable<'_>, AdoptErrorKind> {
        Ok(DeadLetterTable::find(self.client, self.table.as_deref(), &self.group).await?)
    }
}

impl fmt::Debug for Adoption<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adoption")
            .field("table", &self.table)
            .field("group", &self.group)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}
