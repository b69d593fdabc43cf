//! The indexes: one for each way in which the store reads.
//!
//! Equal fields come first, then those of the order, so that a page is read from its beginning and nothing is sorted. A test compares every
//! statement that the store sends with this list (`statements`).

use std::time::Duration;

use bson::{Bson, Document, doc};
use lazaret_core::store::{ErrorKind, Result};
use mongodb::IndexModel;
use mongodb::action::Action;
use mongodb::error::{Error, ErrorKind as Driver};
use mongodb::options::{CommitQuorum, IndexOptions};

use crate::calls::Documents;
use crate::database::Database;
use crate::error::writing;
use crate::layout::Layout;
use crate::sharding::shard_key;
use crate::store::MongoStore;

/// Values of earlier versions are deleted by the server this long after they have expired. An expired value counts as absent, so nothing
/// depends on it. Those of this version have no date for the server, whose clock may be set: writes remove them.
const EXPIRED_VALUES_KEPT: Duration = Duration::from_secs(3600);
/// Ends are deleted by the server this long after they were forgotten. Until then a slow call cannot list them again.
const FORGOTTEN_ENDS_KEPT: Duration = Duration::from_secs(3600);

/// An index.
pub(crate) struct Index {
    pub(crate) keys: Document,
    /// Only documents that meet this are in it. A statement uses it only if it repeats the condition.
    pub(crate) only: Option<Document>,
    /// The server deletes documents this long after the time in the indexed field.
    kept: Option<Duration>,
}

impl Index {
    const fn on(keys: Document) -> Self {
        Self { keys, only: None, kept: None }
    }

    fn model(&self) -> IndexModel {
        let mut options = IndexOptions::default();
        (options.partial_filter_expression, options.expire_after) = (self.only.clone(), self.kept);
        IndexModel::builder().keys(self.keys.clone()).options(options).build()
    }
}

/// The indexes of a collection.
pub(crate) struct Indexes<'db> {
    pub(crate) of: &'db Documents,
    pub(crate) wanted: Vec<Index>,
    /// The keys of indexes of earlier versions that the store does not use any more.
    unused: Vec<Document>,
}

/// The condition that a number or a time is there. Types are compared first, so null is below every number.
pub(crate) fn is_number() -> Document {
    doc! { "$gte": i64::MIN }
}

/// The condition that a plan has letters without an outcome.
pub(crate) fn is_above_zero() -> Document {
    doc! { "$gt": 0_i64 }
}

/// The indexes of all collections.
pub(crate) fn indexes(db: &Database, layout: Layout) -> Vec<Indexes<'_>> {
    let on = |of, keys: Vec<Document>| Indexes {
        of,
        wanted: keys.into_iter().map(Index::on).collect(),
        unused: Vec::new(),
    };
    let sequences = Indexes {
        unused: vec![doc! { "queue": 1, "open": 1, "freeAt": 1 }, doc! { "queue": 1, "revision": 1 }],
        ..on(
            &db.sequences,
            vec![
                doc! { "queue": 1, "open": 1, "freeAt": 1, "sequence": 1 },
                doc! { "queue": 1, "open": 1, "touched": 1, "sequence": 1 },
                doc! { "queue": 1, "open": 1, "latest": 1 },
                doc! { "queue": 1, "open": 1, "revision": 1, "sequence": 1 },
                doc! { "unfinished": 1 },
                doc! { "row.lease.operation": 1 },
            ],
        )
    };
    let mut letters = Indexes {
        unused: vec![
            doc! { "lazaret.number": -1 },
            doc! { "lazaret.queue": 1, "lazaret.group": 1, "lazaret.open": 1, "lazaret.enqueued": 1 },
            doc! { "lazaret.queue": 1, "lazaret.open": 1, "lazaret.enqueued": 1 },
            doc! { "lazaret.queue": 1, "lazaret.open": 1, "lazaret.expires": 1 },
            doc! { "lazaret.queue": 1, "lazaret.open": 1, "lazaret.closed": 1 },
            doc! { "lazaret.queue": 1, "lazaret.state": 1, "lazaret.number": -1 },
        ],
        ..on(
            &db.letters,
            vec![
                doc! { "lazaret.queue": 1, "lazaret.sequence": 1, "lazaret.open": 1, "lazaret.index": 1 },
                // The shard key tells a shard which entries are its own. Without it, a count would read every letter.
                doc! { "lazaret.queue": 1, "lazaret.state": 1, "lazaret.number": -1, "_id": 1 },
                doc! { "lazaret.queue": 1, "lazaret.group": 1, "lazaret.open": 1, "lazaret.number": -1 },
                doc! { "lazaret.sequence": 1, "lazaret.open": 1, "lazaret.number": -1 },
                doc! { "lazaret.open": 1, "lazaret.number": -1 },
            ],
        )
    };
    letters.wanted.extend([
        // For the queries of people; the store has none like them.
        Index::on(match layout {
            Layout::Lazaret => doc! { "stream": 1, "state": 1 },
            Layout::FlowWarden => doc! { "streamName": 1, "status": 1 },
        }),
        // Most letters are in neither.
        Index {
            only: Some(doc! { "lazaret.open": true, "lazaret.expires": is_number() }),
            ..Index::on(doc! { "lazaret.queue": 1, "lazaret.expires": 1 })
        },
        Index {
            only: Some(doc! { "lazaret.open": false, "lazaret.closed": is_number() }),
            ..Index::on(doc! { "lazaret.queue": 1, "lazaret.closed": 1 })
        },
    ]);
    let mut ends = Indexes {
        unused: vec![doc! { "queue": 1, "period": 1, "waiting": 1, "order": 1 }],
        ..on(
            &db.ends,
            vec![
                doc! { "queue": 1, "period": 1, "number": 1 },
                doc! { "queue": 1, "period": 1, "waiting": 1, "order": 1, "_id": 1 },
            ],
        )
    };
    let ttl = |field: &str, kept| Index { kept: Some(kept), ..Index::on(doc! { field: 1 }) };
    ends.wanted.push(ttl("forgottenAt", FORGOTTEN_ENDS_KEPT));
    let mut values = on(&db.values, vec![doc! { "expires": 1 }]);
    values.wanted.push(ttl("expiredAt", EXPIRED_VALUES_KEPT));
    let mut plans = Indexes {
        unused: vec![doc! { "pending": 1 }],
        ..on(
            &db.plans,
            vec![
                doc! { "operation.id": -1 },
                doc! { "live": 1, "operation.id": -1 },
                doc! { "unfinished": 1 },
                doc! { "operation": 1, "expiresAt": 1 },
                doc! { "operation": 1, "_id": -1 },
            ],
        )
    };
    // The operations under way, in their turns. An index of the number itself would be written with each outcome.
    plans.wanted.push(Index {
        only: Some(doc! { "pending": is_above_zero() }),
        ..Index::on(doc! { "servedAt": 1, "operation.id": 1 })
    });
    vec![
        sequences,
        letters,
        on(&db.chunks, vec![doc! { "claim": 1, "number": 1 }]),
        on(&db.groups, vec![doc! { "open": -1, "_id": 1 }, doc! { "queue": 1, "open": -1, "_id": 1 }]),
        on(&db.notes, vec![doc! { "queue": 1, "stream": 1, "partition": 1, "offset": 1 }]),
        plans,
        on(
            &db.items,
            vec![
                doc! { "plan": 1, "ordinal": 1 },
                doc! { "plan": 1, "outcome": 1, "ordinal": 1 },
                doc! { "plan": 1, "queue": 1, "outcome": 1, "ordinal": 1 },
                doc! { "plan": 1, "queue": 1, "sequence": 1, "outcome": 1 },
                doc! { "letter": 1, "outcome": 1 },
            ],
        ),
        on(&db.pauses, vec![doc! { "unfinished": 1 }]),
        on(&db.audit, vec![doc! { "token": 1 }, doc! { "subject": 1, "_id": -1 }]),
        ends,
        values,
    ]
}

impl MongoStore {
    /// Creates the indexes that are missing, and drops those of earlier versions that nothing uses.
    ///
    /// A majority of the members has to build an index. By default the server waits for all of them, so that a store could not be
    /// opened while one is down.
    pub(crate) async fn create_indexes(&self) -> Result<()> {
        let hello = self.db().hello().await?;
        let quorum = has_members(&hello).then_some(CommitQuorum::Majority);
        for Indexes { of, wanted, unused } in indexes(self.db(), self.layout()) {
            create(of, &wanted, quorum.clone()).await?;
            self.drop_unused(of, &unused).await?;
        }
        if is_router(&hello) {
            for of in self.db().collections() {
                self.create_hashed(of, quorum.clone()).await?;
            }
        }
        Ok(())
    }

    /// Creates the index without which a cluster cannot spread a collection by a hash once it has documents. Elsewhere nothing needs it.
    async fn create_hashed(&self, of: &Documents, quorum: Option<CommitQuorum>) -> Result<()> {
        let Some(key) = shard_key(self.db(), of).filter(|key| key.is_hashed) else { return Ok(()) };
        let keys = key.document();
        // One that a person created may have another name, under which the server would refuse it.
        let listed = self.db().listed_indexes(of).await?;
        if listed.iter().any(|index| index.get_document("key").is_ok_and(|known| *known == keys)) {
            return Ok(());
        }
        create(of, &[Index::on(keys)], quorum).await
    }

    /// Drops indexes that earlier versions created and this one does not use. Each costs every write, but does no harm: one that cannot
    /// be dropped now is dropped when a store is opened the next time.
    async fn drop_unused(&self, of: &Documents, unused: &[Document]) -> Result<()> {
        if unused.is_empty() {
            return Ok(());
        }
        for index in self.db().listed_indexes(of).await? {
            let (Ok(keys), Ok(name)) = (index.get_document("key"), index.get_str("name")) else { continue };
            // One that a person created has another name, or serves statements of others.
            let is_unused = unused.iter().any(|unused| default_name(unused) == name && same(unused, keys));
            if !is_unused {
                continue;
            }
            let collection = of.namespace();
            match of.collection().drop_index(name).await {
                Ok(()) => tracing::info!(%collection, index = name, "unused index dropped"),
                Err(error) => {
                    let why = writing(error);
                    if why.kind() == ErrorKind::Unavailable {
                        tracing::debug!(%collection, index = name, error = why.context(), "unused index not dropped");
                    } else {
                        tracing::warn!(%collection, index = name, error = why.context(), "unused index not dropped");
                    }
                }
            }
        }
        Ok(())
    }
}

/// Creates those of these indexes that are missing.
async fn create(of: &Documents, wanted: &[Index], quorum: Option<CommitQuorum>) -> Result<()> {
    let create = |quorum: Option<CommitQuorum>| {
        let create = of.collection().create_indexes(wanted.iter().map(Index::model));
        create.optional(quorum, |create, quorum| create.commit_quorum(quorum))
    };
    let created = match create(quorum.clone()).await {
        // While the servers of an upgraded replica set behave like those of the version before.
        Err(error) if quorum.is_some() && refuses_quorum(&error) => create(None).await,
        created => created,
    };
    created.map(drop).map_err(writing)
}

/// Whether a server belongs to a replica set, or routes to some. A single server refuses a commit quorum.
fn has_members(hello: &Document) -> bool {
    hello.contains_key("setName") || is_router(hello)
}

/// Whether a server is a router of a sharded cluster.
fn is_router(hello: &Document) -> bool {
    hello.get_str("msg").is_ok_and(|kind| kind == "isdbgrid")
}

/// Whether a server does not take a commit quorum.
fn refuses_quorum(error: &Error) -> bool {
    matches!(&*error.kind, Driver::Command(command) if command.message.contains("commitQuorum"))
}

/// The name of an index that was created without one.
fn default_name(keys: &Document) -> String {
    let parts: Vec<String> = keys.iter().map(|(field, order)| format!("{field}_{}", sign(order))).collect();
    parts.join("_")
}

fn same(one: &Document, other: &Document) -> bool {
    let fields = |keys: &Document| -> Vec<(String, i32)> {
        keys.iter().map(|(field, order)| (field.clone(), sign(order))).collect()
    };
    fields(one) == fields(other)
}

/// 1 for ascending, -1 for descending. A server may state it as any kind of number.
pub(crate) fn sign(order: &Bson) -> i32 {
    let is_descending = match order {
        Bson::Int32(order) => *order < 0,
        Bson::Int64(order) => *order < 0,
        Bson::Double(order) => *order < 0.0,
        _ => false,
    };
    if is_descending { -1 } else { 1 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mongodb::Client;

    use super::*;

    #[tokio::test]
    async fn no_index_is_declared_twice_or_dropped_again() {
        let client = Client::with_uri_str("mongodb://127.0.0.1:1/?directConnection=true").await.unwrap();
        let db = Database::new(&client, "shop", "letters", 5);
        for Indexes { of, wanted, unused } in indexes(&db, Layout::default()) {
            let names: BTreeSet<String> = wanted.iter().map(|index| default_name(&index.keys)).collect();
            assert_eq!(names.len(), wanted.len(), "{}", of.name());
            assert!(unused.iter().all(|keys| !names.contains(&default_name(keys))), "{}", of.name());
        }
    }

    #[tokio::test]
    async fn each_shard_key_has_an_index() {
        let client = Client::with_uri_str("mongodb://127.0.0.1:1/?directConnection=true").await.unwrap();
        let db = Database::new(&client, "shop", "letters", 5);
        let all = indexes(&db, Layout::default());
        let ranged = db.collections().into_iter().filter_map(|of| {
            let key = shard_key(&db, of)?;
            // Those of hashes are created where there are shards.
            (!key.is_hashed).then_some((of, key))
        });
        for (of, key) in ranged {
            let declared = all.iter().find(|indexes| indexes.of.name() == of.name()).unwrap();
            let mut first = declared.wanted.iter().filter_map(|index| index.keys.keys().next());
            assert!(first.any(|field| field == key.field), "{}", of.name());
        }
    }

    #[test]
    fn only_a_server_with_members_is_asked_for_a_quorum() {
        assert!(has_members(&doc! { "setName": "rs0", "isWritablePrimary": true }));
        assert!(has_members(&doc! { "msg": "isdbgrid" }));
        assert!(!has_members(&doc! { "isWritablePrimary": true }), "it would refuse the statement");
    }

    #[test]
    fn an_index_is_known_by_its_name_and_its_keys() {
        let keys = doc! { "lazaret.queue": 1, "lazaret.number": -1 };
        assert_eq!(default_name(&keys), "lazaret.queue_1_lazaret.number_-1");
        assert!(same(&keys, &doc! { "lazaret.queue": 1.0, "lazaret.number": -1_i64 }));
        assert!(!same(&keys, &doc! { "lazaret.number": -1, "lazaret.queue": 1 }));
    }
}
