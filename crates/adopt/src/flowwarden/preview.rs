//! Tells what an adoption would do, without writing anything.

use lazaret_core::MessageId;
use lazaret_core::store::LetterStore;
use serde::Serialize;

use super::collection::{DeadLetterCollection, DocumentCursor};
use crate::error::AdoptErrorKind;
use crate::progress::Tally;
use crate::source::{Content, DeadLetterSource};
use crate::target::Target;

/// The maximum number of unknown documents that are listed; all are counted (I7).
const LISTED_LIMIT: usize = 100;

/// What an adoption would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Preview {
    /// The counts: `adopted` would become letters.
    pub counts: Tally,
    /// The documents of each stream and status, those of other streams included; the first 100.
    pub streams: Vec<StreamCount>,
    /// The addresses of unknown documents, the first 100.
    pub unknown_at: Vec<String>,
}

/// The number of documents of a stream with one status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct StreamCount {
    /// The name of the stream in FlowWarden; `None` for documents that have none.
    pub stream: Option<String>,
    /// The status; `None` for documents that have none.
    pub status: Option<String>,
    /// The number of documents.
    pub documents: u64,
}

/// Reads everything, and looks up which messages have a letter.
pub(super) async fn preview<S: LetterStore + ?Sized>(
    store: &S,
    target: &Target,
    source: &mut DeadLetterCollection,
    streams: Vec<StreamCount>,
) -> Result<Preview, AdoptErrorKind> {
    source.open(DocumentCursor::default()).await?;
    let mut found = Preview { streams, ..Preview::default() };
    let mut last: Option<MessageId> = None;
    loop {
        let batch = source.read().await?;
        if batch.is_empty() {
            break;
        }
        let mut letters = Vec::new();
        for entry in batch {
            found.counts.read += 1;
            match entry.content {
                Content::Closed => found.counts.closed += 1,
                Content::Unknown(reason) => {
                    found.counts.unknown += 1;
                    if found.unknown_at.len() < LISTED_LIMIT {
                        let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
                        found.unknown_at.push(format!("{}{reason}", entry.address));
                    }
                }
                Content::Letter(letter) if target.is_foreign(&letter) => found.counts.foreign += 1,
                Content::Letter(letter) => letters.push(letter),
            }
        }
        let ids: Vec<MessageId> = letters.iter().map(|letter| letter.message.id.clone()).collect();
        let known = store.lookup(&target.queue, &ids).await.map_err(AdoptErrorKind::Store)?;
        for (letter, known) in letters.into_iter().zip(known) {
            found.counts.damaged += u64::from(!letter.warnings.is_empty());
            // Copies of one event have one token, so they are neighbours.
            let is_copy = last.as_ref() == Some(&letter.message.id);
            match known.is_some() || is_copy {
                true => found.counts.already_there += 1,
                false => found.counts.adopted += 1,
            }
            last = Some(letter.message.id);
        }
    }
    Ok(found)
}
