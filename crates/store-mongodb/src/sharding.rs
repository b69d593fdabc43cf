//! The keys by which a cluster spreads the collections of a store over its shards.
//!
//! Each key is a function of `_id`: so an `_id` is unique over all shards, and no write changes a key. Every update and deletion has the key
//! in its filter; a test looks at all of them (`statements`).

use bson::{Document, doc};
use mongodb::Client;

use crate::calls::Documents;
use crate::database::Database;
use crate::options::MongoStoreOptions;
use crate::store::MongoStore;

/// A collection of a store, as [`MongoStore::collections`] returns it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CollectionSharding {
    /// Its name, without the database.
    pub name: String,
    /// The key by which a cluster spreads it, as `shardCollection` takes it; `None` for one that stays on the primary shard.
    pub shard_key: Option<Document>,
}

/// The shard key of a collection: one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardKey {
    pub(crate) field: &'static str,
    /// Whether documents are spread by a hash of the field. Then an index of the hash has to be there; the others begin an index.
    pub(crate) is_hashed: bool,
}

impl ShardKey {
    const fn hashed(field: &'static str) -> Self {
        Self { field, is_hashed: true }
    }

    const fn ranged(field: &'static str) -> Self {
        Self { field, is_hashed: false }
    }

    /// The key as a cluster takes it, and an index.
    pub(crate) fn document(self) -> Document {
        let Self { field, is_hashed } = self;
        if is_hashed {
            doc! { field: "hashed" }
        } else {
            doc! { field: 1 }
        }
    }
}

/// The shard key of a collection; `None` if it stays on the primary shard.
pub(crate) fn shard_key(db: &Database, of: &Documents) -> Option<ShardKey> {
    let keys = [
        (&db.letters, ShardKey::hashed("_id")),
        (&db.sequences, ShardKey::hashed("_id")),
        (&db.batches, ShardKey::hashed("_id")),
        (&db.values, ShardKey::hashed("_id")),
        // Those of one letter are together, and so are those of one plan.
        (&db.chunks, ShardKey::ranged("claim")),
        (&db.items, ShardKey::ranged("plan")),
    ];
    keys.into_iter().find(|(sharded, _)| sharded.name() == of.name()).map(|(_, key)| key)
}

impl MongoStore {
    /// The collections of a store in this database, the largest first, with the keys by which a cluster spreads them. Asks no server.
    pub fn collections(
        client: &Client,
        database: &str,
        options: MongoStoreOptions,
    ) -> Vec<CollectionSharding> {
        let store = Self::unchecked(client, database, options);
        let db = store.db();
        let collection = |of: &Documents| CollectionSharding {
            name: of.name().to_owned(),
            shard_key: shard_key(db, of).map(ShardKey::document),
        };
        db.collections().into_iter().map(collection).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn collections_that_grow_have_a_shard_key() {
        let client = Client::with_uri_str("mongodb://127.0.0.1:1/?directConnection=true").await.unwrap();
        let collections = MongoStore::collections(&client, "shop", MongoStoreOptions::default());
        assert_eq!(collections.len(), 15);
        let sharded: Vec<(&str, &Document)> = collections
            .iter()
            .filter_map(|collection| Some((collection.name.as_str(), collection.shard_key.as_ref()?)))
            .collect();
        let (id, claim, plan) = (doc! { "_id": "hashed" }, doc! { "claim": 1 }, doc! { "plan": 1 });
        assert_eq!(
            sharded,
            [
                ("lazaret_letters", &id),
                ("lazaret_letters_chunks", &claim),
                ("lazaret_letters_sequences", &id),
                ("lazaret_letters_plan_items", &plan),
                ("lazaret_letters_values", &id),
                ("lazaret_letters_batches", &id),
            ]
        );
    }
}
