//! Small values by name, the basis of checkpoints, locks and the duplicate filter.

use std::time::Duration;

use async_trait::async_trait;
use bson::{Binary, DateTime, doc};
use bytes::Bytes;
use lazaret_core::store::rules::later;
use lazaret_core::store::{Expect, KeyValue, Reading, Result, Versioned, Written};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::database::{encode, get, put_if};
use crate::store::MongoStore;
use crate::values::{date, nanos, time, uint};

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
    /// For the server, which deletes it some time after.
    #[serde(skip_serializing_if = "Option::is_none")]
    expired_at: Option<DateTime>,
}

fn key(space: &str, name: &str) -> String {
    format!("{}:{space}{name}", space.len())
}

impl MongoStore {
    async fn value_of(&self, space: &str, name: &str) -> Result<(Option<ValueDoc>, Reading)> {
        let doc: Option<ValueDoc> = get(&self.db().values, key(space, name)).await?;
        let now = self.now().await?;
        let current = doc.as_ref().filter(|doc| doc.expires.is_none_or(|end| time(end) > now));
        let found = current.map(|doc| Versioned {
            value: Bytes::from(doc.value.bytes.clone()),
            version: uint(doc.version),
            expires_at: doc.expires.map(time),
        });
        Ok((doc, Reading { found, now }))
    }
}

#[async_trait]
impl KeyValue for MongoStore {
    async fn read(&self, space: &str, name: &str) -> Result<Reading> {
        Ok(self.value_of(space, name).await?.1)
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
        loop {
            let (stored, reading) = self.value_of(space, name).await?;
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
            let expires = ttl.map(|ttl| later(reading.now, ttl));
            let subtype = bson::spec::BinarySubtype::Generic;
            let doc = ValueDoc {
                id: key(space, name),
                space: space.to_owned(),
                name: name.to_owned(),
                value: Binary { subtype, bytes: value.to_vec() },
                version: i64::try_from(found.unwrap_or_default()).unwrap_or_default() + 1,
                tag: Uuid::new_v4().to_string(),
                expires: expires.map(nanos),
                expired_at: expires.filter(|_| self.has_server_clock()).map(date),
            };
            let document = encode(&doc)?;
            self.db().pass()?;
            if put_if(values, filter, document).await? {
                return Ok(Written::Done);
            }
        }
    }
}
