//! When the next letters of groups expire. What is read for that is decided by [`NextExpiries`].

use std::collections::HashMap;

use bson::{Document, doc};
use lazaret_core::letter::LetterState;
use lazaret_core::store::Result;
use lazaret_core::store::rules::{EXPIRIES_OF_GROUP, EXPIRIES_OF_QUEUE, GroupExpiry, NextExpiries};
use lazaret_core::{Fingerprint, QueueName, Timestamp};
use serde::Deserialize;

use crate::counts::will_expire;
use crate::database::list_fields;
use crate::documents::group::GroupDoc;
use crate::store::MongoStore;
use crate::values::time;

/// The letters that expire next, by queue. Those of a queue are read once for all of its groups.
#[derive(Default)]
pub(crate) struct Expiries(HashMap<QueueName, NextExpiries<Fingerprint>>);

/// A letter, reduced to what is needed here.
#[derive(Deserialize)]
struct ExpiryDoc {
    lazaret: Expiry,
}

#[derive(Deserialize)]
struct Expiry {
    state: LetterState,
    #[serde(default)]
    group: Option<Fingerprint>,
    #[serde(default)]
    expires: Option<i64>,
}

impl Expiries {
    /// When the next open letter of a group expires.
    pub(crate) async fn next_of(
        &mut self,
        store: &MongoStore,
        group: &GroupDoc,
    ) -> Result<Option<Timestamp>> {
        let next = match self.0.get(&group.queue) {
            Some(known) => known.of(&group.fingerprint),
            None => {
                let read = store.next_expiries(&group.queue).await?;
                let next = read.of(&group.fingerprint);
                self.0.insert(group.queue.clone(), read);
                next
            }
        };
        match next {
            GroupExpiry::Known(next) => Ok(next),
            GroupExpiry::OfOldest => store.expiry_of_oldest(group).await,
        }
    }
}

impl MongoStore {
    /// The letters of a queue that expire next. Letters that wait do not.
    async fn next_expiries(&self, queue: &QueueName) -> Result<NextExpiries<Fingerprint>> {
        let filter = will_expire(queue, None);
        let letters = self.expiries(filter, doc! { "lazaret.expires": 1 }, EXPIRIES_OF_QUEUE).await?;
        let letters = letters.into_iter().filter_map(|of| Some((of.group, time(of.expires?))));
        Ok(NextExpiries::new(letters))
    }

    /// The earliest expiry of the oldest open letters of a group.
    async fn expiry_of_oldest(&self, group: &GroupDoc) -> Result<Option<Timestamp>> {
        let filter = doc! {
            "lazaret.queue": group.queue.as_str(),
            "lazaret.group": group.fingerprint.to_string(),
            "lazaret.open": true,
        };
        let letters = self.expiries(filter, doc! { "lazaret.number": 1 }, EXPIRIES_OF_GROUP).await?;
        let may_expire = letters.into_iter().filter(|of| of.state != LetterState::Waiting);
        Ok(may_expire.filter_map(|of| of.expires).min().map(time))
    }

    async fn expiries(&self, filter: Document, sort: Document, limit: usize) -> Result<Vec<Expiry>> {
        let fields = doc! { "lazaret.state": 1, "lazaret.group": 1, "lazaret.expires": 1 };
        let letters: Vec<ExpiryDoc> = list_fields(&self.db().letters, filter, fields, sort, limit).await?;
        Ok(letters.into_iter().map(|doc| doc.lazaret).collect())
    }
}
