//! Pauses: one document for each consumer.

use std::collections::BTreeSet;

use bson::doc;
use lazaret_core::store::rules;
use lazaret_core::store::{Actor, Pause, PauseScope, Result};
use lazaret_core::{ConsumerName, QueueName, SequenceId};
use serde::{Deserialize, Serialize};

use crate::database::{Guarded, get, project};
use crate::documents::left::Left;
use crate::error::maybe_done;
use crate::store::MongoStore;

/// The pauses of a consumer, and the lines of the audit that are left to be written.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct PausesDoc {
    #[serde(rename = "_id")]
    consumer: ConsumerName,
    version: i64,
    pauses: Vec<Pause>,
    unfinished: bool,
    left: Vec<Left>,
}

impl MongoStore {
    /// The sequences that are paused for the consumer of a queue.
    pub(crate) async fn paused_sequences(&self, queue: &QueueName) -> Result<BTreeSet<SequenceId>> {
        let pauses = self.pauses_of(&queue.consumer().into()).await?;
        let sequence = |pause: Pause| match pause.scope {
            PauseScope::Sequence(sequence) => Some(sequence),
            _ => None,
        };
        Ok(pauses.into_iter().filter_map(sequence).collect())
    }

    pub(crate) async fn pauses_of(&self, consumer: &ConsumerName) -> Result<Vec<Pause>> {
        let doc: Option<PausesDoc> = get(&self.db().pauses, consumer.as_str()).await?;
        Ok(doc.map_or_else(Vec::new, |doc| doc.pauses))
    }

    pub(crate) async fn pause_scope(
        &self,
        consumer: &ConsumerName,
        scope: &PauseScope,
        paused: bool,
        by: &Actor,
    ) -> Result<bool> {
        loop {
            let mut doc = self.finished_pauses(consumer).await?;
            let now = self.now().await?;
            let known = doc.pauses.iter().position(|pause| pause.scope == *scope);
            let pause = Pause { scope: scope.clone(), by: by.clone(), since: now };
            match (known, paused) {
                (Some(place), true) => doc.pauses[place] = pause,
                (Some(place), false) => drop(doc.pauses.remove(place)),
                (None, true) => doc.pauses.push(pause),
                (None, false) => {}
            }
            doc.pauses.sort_by(|one, other| one.scope.cmp(&other.scope));
            let line = rules::pause_audit(consumer, scope, known.is_some(), paused, by);
            doc.left = line.map(|line| Left::audit(line, now)).into_iter().collect();
            doc.unfinished = !doc.left.is_empty();
            if self.put_pauses(&mut doc).await? {
                if doc.unfinished {
                    self.carry_out_pauses(doc).await.map_err(maybe_done)?;
                }
                return Ok(known.is_some());
            }
        }
    }

    async fn finished_pauses(&self, consumer: &ConsumerName) -> Result<PausesDoc> {
        loop {
            let doc: Option<PausesDoc> = get(&self.db().pauses, consumer.as_str()).await?;
            match doc {
                Some(doc) if doc.unfinished => self.carry_out_pauses(doc).await?,
                Some(doc) => return Ok(doc),
                None => {
                    let (pauses, left) = (Vec::new(), Vec::new());
                    let consumer = consumer.clone();
                    return Ok(PausesDoc { consumer, version: 0, pauses, unfinished: false, left });
                }
            }
        }
    }

    async fn put_pauses(&self, doc: &mut PausesDoc) -> Result<bool> {
        let version = doc.version;
        doc.version += 1;
        let write = Guarded::new(doc.consumer.as_str(), version, doc)?;
        self.db().put(&self.db().pauses, write).await
    }

    async fn carry_out_pauses(&self, mut doc: PausesDoc) -> Result<()> {
        let left = std::mem::take(&mut doc.left).into_iter().enumerate();
        let lines = left.filter_map(|(place, left)| match left {
            Left::Audit(line) => Some((format!("pauses {}#{}#{place}", doc.consumer, doc.version), line)),
            _ => None,
        });
        self.append_lines(lines.collect()).await?;
        doc.unfinished = false;
        self.put_pauses(&mut doc).await.map(drop)
    }

    /// Writes what interrupted calls have left.
    pub(crate) async fn finish_pauses(&self) -> Result<()> {
        let none = bson::Document::new;
        let docs: Vec<PausesDoc> =
            project(&self.db().pauses, doc! { "unfinished": true }, none(), none()).await?;
        for doc in docs {
            self.carry_out_pauses(doc).await?;
        }
        Ok(())
    }
}
