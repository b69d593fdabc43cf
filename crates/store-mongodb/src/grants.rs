//! Grants of partitions, and the sequences to which a hand-off under one is under way.
//!
//! A grant is another document than the sequence. A hand-off is admitted there, with its sequences noted as under way and the
//! horizon raised, before it decides. A new grant, or a later turn, first writes every sequence that is under way anew: a late
//! decision on the old version fails, is taken again, and is fenced.

use std::collections::{BTreeMap, BTreeSet};

use bson::doc;
use lazaret_core::store::rules::GrantRow;
use lazaret_core::store::{Grant, Result};
use lazaret_core::{Partition, QueueName, SequenceId};
use serde::{Deserialize, Serialize};

use crate::database::{Guarded, get, project};
use crate::store::MongoStore;
use crate::values::{int, uint};

/// The grant of a partition.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GrantDoc {
    #[serde(rename = "_id")]
    id: String,
    version: i64,
    fence: i64,
    turn: i64,
    horizon: Option<i64>,
    pub(crate) under_way: BTreeSet<SequenceId>,
}

fn key(queue: &QueueName, partition: &Partition) -> String {
    format!("{}:{queue}{partition}", queue.as_str().len())
}

impl GrantDoc {
    fn new(id: String) -> Self {
        Self { id, version: 0, fence: 0, turn: 0, horizon: None, under_way: BTreeSet::new() }
    }

    pub(crate) fn row(&self) -> GrantRow {
        GrantRow { fence: uint(self.fence), turn: uint(self.turn), horizon: self.horizon.map(uint) }
    }

    pub(crate) fn set_row(&mut self, row: GrantRow) {
        (self.fence, self.turn, self.horizon) = (int(row.fence), int(row.turn), row.horizon.map(int));
    }

    fn write(&self) -> Result<Guarded> {
        let next = Self { version: self.version + 1, ..self.clone() };
        Guarded::new(self.id.as_str(), self.version, &next)
    }
}

impl MongoStore {
    /// Ends every older grant. A hand-off that was admitted before and is still under way must not happen after the answer, so
    /// the sequences concerned are interrupted: it loads again, and is fenced.
    pub(crate) async fn grant(&self, queue: &QueueName, partition: &Partition) -> Result<Grant> {
        let id = key(queue, partition);
        loop {
            let doc: Option<GrantDoc> = get(&self.db().grants, id.as_str()).await?;
            let mut doc = doc.unwrap_or_else(|| GrantDoc::new(id.clone()));
            for sequence in std::mem::take(&mut doc.under_way) {
                self.interrupt(queue, &sequence).await?;
            }
            let row = doc.row().granted();
            doc.set_row(row);
            if self.db().put(&self.db().grants, doc.write()?).await? {
                return Ok(Grant { partition: partition.clone(), fence: row.fence, horizon: row.horizon });
            }
        }
    }

    /// The grants of these partitions.
    pub(crate) async fn grants(
        &self,
        queue: &QueueName,
        partitions: BTreeSet<Partition>,
    ) -> Result<BTreeMap<Partition, GrantDoc>> {
        let ids: Vec<String> = partitions.iter().map(|partition| key(queue, partition)).collect();
        let none = bson::Document::new;
        let found: Vec<GrantDoc> =
            project(&self.db().grants, doc! { "_id": { "$in": ids } }, none(), none()).await?;
        let mut found: BTreeMap<String, GrantDoc> =
            found.into_iter().map(|doc| (doc.id.clone(), doc)).collect();
        let of = |partition: Partition| {
            let id = key(queue, &partition);
            let doc = found.remove(&id).unwrap_or_else(|| GrantDoc::new(id));
            (partition, doc)
        };
        Ok(partitions.into_iter().map(of).collect())
    }

    /// Writes a grant with its new row, and the sequences to which a hand-off is under way from now on. Those that are under way
    /// under an earlier turn will not happen any more. `false` when the grant has changed meanwhile.
    pub(crate) async fn admit(
        &self,
        queue: &QueueName,
        mut known: GrantDoc,
        row: GrantRow,
        sequences: BTreeSet<SequenceId>,
    ) -> Result<bool> {
        if row == known.row() && sequences.is_empty() {
            return Ok(true);
        }
        if row.turn > known.row().turn {
            for earlier in std::mem::take(&mut known.under_way) {
                self.interrupt(queue, &earlier).await?;
            }
        }
        known.under_way.extend(sequences);
        known.set_row(row);
        self.db().put(&self.db().grants, known.write()?).await
    }

    /// Hand-offs to these sequences are not under way any more.
    pub(crate) async fn leave(
        &self,
        queue: &QueueName,
        partition: &Partition,
        sequences: &BTreeSet<SequenceId>,
    ) -> Result<()> {
        let id = key(queue, partition);
        while let Some(mut doc) = get::<GrantDoc>(&self.db().grants, id.as_str()).await? {
            let before = doc.under_way.len();
            doc.under_way.retain(|sequence| !sequences.contains(sequence));
            if doc.under_way.len() == before || self.db().put(&self.db().grants, doc.write()?).await? {
                break;
            }
        }
        Ok(())
    }
}
