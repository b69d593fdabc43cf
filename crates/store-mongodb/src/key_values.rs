//! Small values by name, the basis of checkpoints, locks and the duplicate filter.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bson::{Binary, doc};
use bytes::Bytes;
use lazaret_core::store::{Expect, ExpiryTime, KeyValue, Reading, Result, Versioned, Written};
use mongodb::Client;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::database::{encode, get, list, put_if};
use crate::options::MongoStoreOptions;
use crate::store::MongoStore;
use crate::values::{nanos, time, uint};

/// One write in so many removes expired values.
const PRUNE_EVERY: u64 = 16;
/// Number of expired values that such a write removes. More than are added until the next one, so they never accumulate (I7).
const PRUNE: usize = 64;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ValueDoc {
    #[serde(rename = "_id")]
    id: String,
    space: String,
    name: String,
    value: Binary,
    version: i64,
    /// New with every write. A version restarts after the value was removed, so it does not tell two values apart.
    tag: String,
    expires: Option<i64>,
}

fn key(space: &str, name: &str) -> String {
    format!("{}:{space}{name}", space.len())
}

impl MongoStore {
    /// The value with this name in a namespace of a store in this database, for checks before the start. Changes nothing.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub async fn stored_value(
        client: &Client,
        database: &str,
        options: MongoStoreOptions,
        space: &str,
        name: &str,
    ) -> Result<Option<Bytes>> {
        let store = Self::unchecked(client, database, options);
        Ok(store.value_of(space, name).await?.1.found.map(|found| found.value))
    }

    /// The value as it is stored, expired or not.
    async fn value_of(&self, space: &str, name: &str) -> Result<(Option<ValueDoc>, Reading)> {
        let doc: Option<ValueDoc> = get(&self.db().values, key(space, name)).await?;
        let now = self.now().await?;
        let found = doc.as_ref().map(|doc| Versioned {
            value: Bytes::from(doc.value.bytes.clone()),
            version: uint(doc.version),
            expires_at: doc.expires.map(time),
        });
        Ok((doc, Reading { found, now }))
    }

    /// Removes expired values, at some of the writes.
    async fn prune_values(&self, passed: ExpiryTime) -> Result<()> {
        if !self.value_writes().fetch_add(1, Ordering::Relaxed).is_multiple_of(PRUNE_EVERY) {
            return Ok(());
        }
        let (db, expired) = (self.db(), doc! { "$ne": null, "$lte": nanos(passed.earliest) });
        let filter = doc! { "expires": expired.clone() };
        let found: Vec<ValueDoc> = list(&db.values, filter, doc! { "expires": 1 }, PRUNE).await?;
        if found.is_empty() {
            return Ok(());
        }
        let ids: Vec<String> = found.into_iter().map(|value| value.id).collect();
        // One that was written again meanwhile stays.
        db.delete(&db.values, doc! { "_id": { "$in": ids }, "expires": expired }).await.map(drop)
    }
}

#[async_trait]
impl KeyValue for MongoStore {
    async fn read(&self, space: &str, name: &str) -> Result<Reading> {
        let (_, stored) = self.value_of(space, name).await?;
        self.expiry().unexpired(self, space, stored).await
    }

    async fn write(
        &self,
        space: &str,
        name: &str,
        expect: Expect,
        value: Option<Bytes>,
        ttl: Option<Duration>,
    ) -> Result<Written> {
        let values = &self.db().values;
        let passed = self.expiry().time(self, space).await?;
        self.prune_values(passed).await?;
        loop {
            let (stored, reading) = self.value_of(space, name).await?;
            let reading = passed.unexpired(reading);
            let found = reading.found.as_ref().map(|found| found.version);
            let holds = match expect {
                Expect::Anything => true,
                Expect::Absent => found.is_none(),
                Expect::Version(version) => found == Some(version),
            };
            if !holds {
                return Ok(Written::Conflict(reading));
            }
            let filter = stored.as_ref().map(|stored| doc! { "_id": &stored.id, "tag": &stored.tag });
            let Some(value) = &value else {
                let Some(filter) = filter else { return Ok(Written::Done) };
                if self.db().delete(values, filter).await? == 1 {
                    return Ok(Written::Done);
                }
                continue;
            };
            let subtype = bson::spec::BinarySubtype::Generic;
            let doc = ValueDoc {
                id: key(space, name),
                space: space.to_owned(),
                name: name.to_owned(),
                value: Binary { subtype, bytes: value.to_vec() },
                version: i64::try_from(found.unwrap_or_default()).unwrap_or_default() + 1,
                tag: Uuid::new_v4().to_string(),
                expires: ttl.map(|ttl| nanos(passed.end_of(ttl))),
            };
            let document = encode(&doc)?;
            self.db().pass()?;
            if put_if(values, filter, document).await? {
                return Ok(Written::Done);
            }
        }
    }
}
