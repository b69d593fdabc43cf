//! Judges how a cluster spreads the collections of a MongoDB store over its shards.

use bson::{Bson, Document, doc};
use lazaret_store_mongodb::CollectionSharding;

use super::finding::Finding;

/// Below this, a collection may be on one shard: a balancer moves hundreds of MiB, not less.
const SPREAD_FROM_BYTES: f64 = 1024.0 * 1024.0 * 1024.0;
/// A shard has too much of a collection if it has so many times its share.
const UNEVEN: f64 = 2.0;

const SUBJECT: &str = "store";
const MANUAL: &str = "\"On a sharded cluster\" in docs/store-mongodb.md";

/// What a cluster told about a store.
pub(super) struct Cluster {
    pub(super) database: String,
    /// The collections of the store, with their keys.
    pub(super) wanted: Vec<CollectionSharding>,
    /// The documents of `config.collections` about them.
    pub(super) listed: Result<Vec<Document>, String>,
    /// The number of shards.
    pub(super) shards: Result<usize, String>,
    /// The answers to `collStats` about sharded collections of the store, by name.
    pub(super) statistics: Vec<(String, Result<Document, String>)>,
}

/// The shard key of a collection in this list of the cluster; `None` if it is on one shard.
pub(super) fn listed_key<'a>(listed: &'a [Document], database: &str, name: &str) -> Option<&'a Document> {
    let of = format!("{database}.{name}");
    let found = listed.iter().find(|listed| listed.get_str("_id").is_ok_and(|id| id == of))?;
    // A newer cluster lists others too, with a key that means nothing.
    let is = |name: &str| found.get_bool(name).unwrap_or(false);
    if is("dropped") || is("unsplittable") { None } else { found.get_document("key").ok() }
}

/// Judges the shard keys, and how the documents are spread.
pub(super) fn judge(cluster: &Cluster) -> Vec<Finding> {
    let listed = match &cluster.listed {
        Ok(listed) => listed,
        Err(why) => {
            let detail = format!(
                "whether the collections are sharded, and by which keys, could not be checked: {why}"
            );
            let advice = "grant `find` on the database `config`, for example by the role `clusterMonitor`";
            return vec![Finding::warn(SUBJECT, detail, advice)];
        }
    };
    let (mut found, mut right, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    for CollectionSharding { name, shard_key, .. } in &cluster.wanted {
        let key = listed_key(listed, &cluster.database, name);
        match (key, shard_key) {
            (Some(key), wanted) if !serves(key, wanted.as_ref()) => {
                found.push(wrong_key(&cluster.database, name, key, wanted.as_ref()));
            }
            (Some(_), Some(_)) => right.push(name.as_str()),
            (None, Some(_)) => missing.push(name.as_str()),
            (_, None) => {}
        }
    }
    if !found.is_empty() {
        return found;
    }
    if right.is_empty() {
        let detail = format!(
            "no collection of the store is sharded: all are on the primary shard of {}",
            cluster.database
        );
        let advice = format!("no action needed if one shard is enough; otherwise see {MANUAL}");
        return vec![Finding::warn(SUBJECT, detail, advice)];
    }
    if missing.is_empty() {
        found.push(Finding::ok(
            SUBJECT,
            "the collections that grow are sharded, each by the key of the store",
        ));
    } else {
        let detail = format!("not sharded, unlike others of the store: {}", missing.join(", "));
        found.push(Finding::warn(SUBJECT, detail, format!("shard them as {MANUAL} says")));
    }
    found.push(spread(cluster));
    found
}

/// Whether the statements of the store name this shard key: it has the fields of the one that is wanted, or of an `_id`. A range instead of a hash
/// serves as well.
fn serves(key: &Document, wanted: Option<&Document>) -> bool {
    let id = doc! { "_id": 1 };
    key.keys().eq(wanted.unwrap_or(&id).keys())
}

fn wrong_key(database: &str, name: &str, key: &Document, wanted: Option<&Document>) -> Finding {
    let id = doc! { "_id": 1 };
    let wanted = wanted.unwrap_or(&id);
    let detail =
        format!("{database}.{name} is sharded by {key}, which the statements of the store do not name");
    let advice = format!("from MongoDB 5.0 on: `sh.reshardCollection(\"{database}.{name}\", {wanted})`");
    Finding::fail(SUBJECT, detail, advice)
}

/// Judges how the documents are spread over the shards.
fn spread(cluster: &Cluster) -> Finding {
    let mut told = Vec::new();
    for (name, answer) in &cluster.statistics {
        let statistics = match answer {
            Ok(statistics) => statistics,
            Err(why) => {
                let detail = format!("how the documents of {name} are spread could not be checked: {why}");
                return Finding::warn(SUBJECT, detail, "grant `collStats` on the database of the store");
            }
        };
        let Some((fullest, share, bytes)) = fullest(statistics) else { continue };
        let shards = cluster.shards.as_ref().map_or_else(|_| owners(statistics), |shards| *shards).max(1);
        if bytes >= SPREAD_FROM_BYTES && share * shards as f64 > UNEVEN {
            let detail = format!("{:.0} % of {name} are on one of {shards} shards, {fullest}", share * 100.0);
            let advice = "check that the balancer runs: `sh.getBalancerState()`, `sh.status()`; \
                          no action needed shortly after sharding or after a shard was added";
            return Finding::warn(SUBJECT, detail, advice);
        }
        told.push(format!("{name} {:.0} %", share * 100.0));
    }
    if told.is_empty() {
        return Finding::ok(SUBJECT, "the sharded collections have no documents yet");
    }
    let shards = match &cluster.shards {
        Ok(shards) => format!("{shards} shards"),
        Err(_) => "an unknown number of shards".to_owned(),
    };
    Finding::ok(SUBJECT, format!("share of the fullest of {shards}: {}", told.join(", ")))
}

/// The number of shards that have a part of a collection.
fn owners(statistics: &Document) -> usize {
    statistics.get_document("shards").map_or(0, |shards| shards.len())
}

/// The shard with the most bytes of a collection, its share of them, and all bytes; `None` if the collection has no documents.
fn fullest(statistics: &Document) -> Option<(&str, f64, f64)> {
    let of = |statistics: &Bson| number(statistics.as_document()?.get("size")?);
    let shards = statistics.get_document("shards").ok()?;
    let sizes: Vec<(&str, f64)> =
        shards.iter().filter_map(|(name, shard)| Some((name.as_str(), of(shard)?))).collect();
    let all: f64 = sizes.iter().map(|(_, bytes)| bytes).sum();
    let (name, most) = sizes.into_iter().max_by(|one, other| one.1.total_cmp(&other.1))?;
    (all > 0.0).then(|| (name, most / all, all))
}

/// A number of whatever kind.
fn number(value: &Bson) -> Option<f64> {
    match value {
        Bson::Int32(number) => Some(f64::from(*number)),
        Bson::Int64(number) => Some(*number as f64),
        Bson::Double(number) => Some(*number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use lazaret_store_mongodb::{MongoStore, MongoStoreOptions};
    use mongodb::Client;

    use super::*;
    use crate::doctor::Health;

    const GIB: i64 = 1 << 30;

    /// A cluster of two shards where these collections have these keys, with so many bytes on each shard.
    async fn cluster(keys: &[(&str, Document)], bytes: [i64; 2]) -> Cluster {
        let client = Client::with_uri_str("mongodb://127.0.0.1:1/?directConnection=true").await.unwrap();
        let wanted = MongoStore::collections(&client, "shop", MongoStoreOptions::default());
        let listed = keys
            .iter()
            .map(|(name, key)| doc! { "_id": format!("shop.{name}"), "key": key.clone() })
            .collect();
        let shards = doc! { "one": { "size": bytes[0] }, "other": { "size": bytes[1] as f64 } };
        let statistics =
            keys.iter().map(|(name, _)| ((*name).to_owned(), Ok(doc! { "shards": shards.clone() })));
        Cluster {
            database: "shop".into(),
            wanted,
            listed: Ok(listed),
            shards: Ok(2),
            statistics: statistics.collect(),
        }
    }

    /// The collections that grow, with the keys of the store.
    async fn all_keys() -> Vec<(String, Document)> {
        let wanted = cluster(&[], [0, 0]).await.wanted;
        wanted.into_iter().filter_map(|of| Some((of.name, of.shard_key?))).collect()
    }

    fn named(keys: &[(String, Document)]) -> Vec<(&str, Document)> {
        keys.iter().map(|(name, key)| (name.as_str(), key.clone())).collect()
    }

    #[tokio::test]
    async fn keys_of_the_store_are_ok_also_as_ranges() {
        let keys = all_keys().await;
        for is_range in [false, true] {
            let mut keys = named(&keys);
            if is_range {
                keys[0].1 = doc! { "_id": 1.0 };
            }
            let found = judge(&cluster(&keys, [3 * GIB, 2 * GIB]).await);
            assert_eq!(found.len(), 2, "{found:?}");
            assert!(found.iter().all(|found| found.health == Health::Ok), "{found:?}");
            assert!(found[1].detail.contains("fullest of 2 shards: lazaret_letters 60 %"), "{}", found[1]);
        }
    }

    #[tokio::test]
    async fn a_key_that_statements_do_not_name_fails() {
        let by_queue = doc! { "lazaret.queue": 1, "lazaret.sequence": 1 };
        for (name, key, wanted) in [
            ("lazaret_letters", by_queue, "hashed"),
            ("lazaret_letters_plan_items", doc! { "_id": "hashed" }, "plan"),
            ("lazaret_letters_groups", doc! { "queue": 1 }, "_id"),
        ] {
            let mut found = judge(&cluster(&[(name, key)], [0, 0]).await);
            let found = found.remove(0);
            assert!(found.health == Health::Fail && found.detail.contains(name), "{found}");
            let advice = found.advice.unwrap();
            assert!(advice.contains("reshardCollection") && advice.contains(wanted), "{advice}");
        }
        let mut keys = all_keys().await;
        keys.push(("lazaret_letters_audit".to_owned(), doc! { "_id": 1 }));
        let found = judge(&cluster(&named(&keys), [0, 0]).await);
        assert_eq!(found[0].health, Health::Ok, "by its id, any collection may be sharded: {}", found[0]);
    }

    #[tokio::test]
    async fn collections_that_are_not_sharded_are_told() {
        let none = judge(&cluster(&[], [0, 0]).await).remove(0);
        assert!(none.health == Health::Warn && none.detail.contains("primary shard of shop"), "{none}");
        let keys = all_keys().await;
        let some = judge(&cluster(&named(&keys)[1..], [0, 0]).await).remove(0);
        assert!(some.health == Health::Warn && some.detail.ends_with(": lazaret_letters"), "{some}");
        let mut unsplittable = cluster(&[("lazaret_letters", doc! { "_id": 1 })], [0, 0]).await;
        unsplittable.listed.as_mut().unwrap()[0].insert("unsplittable", true);
        assert!(judge(&unsplittable)[0].detail.contains("no collection of the store is sharded"));
    }

    #[tokio::test]
    async fn a_large_collection_on_one_shard_is_told() {
        let keys = all_keys().await;
        let judged = async |bytes| judge(&cluster(&named(&keys), bytes).await).remove(1);
        assert_eq!(judged([1000, 0]).await.health, Health::Ok, "a balancer leaves it there");
        // Twice its share is all of it, of two shards.
        assert_eq!(judged([3 * GIB, GIB]).await.health, Health::Ok);
        let mut three = cluster(&named(&keys), [5 * GIB, GIB]).await;
        three.shards = Ok(3);
        let uneven = judge(&three).remove(1);
        assert!(
            uneven.health == Health::Warn && uneven.detail.contains("83 % of lazaret_letters"),
            "{uneven}"
        );
    }

    #[tokio::test]
    async fn what_the_user_may_not_see_is_unknown() {
        let keys = all_keys().await;
        let mut denied = cluster(&named(&keys), [0, 0]).await;
        denied.statistics[0].1 = Err("not authorized".into());
        let unknown = judge(&denied).remove(1);
        assert!(
            unknown.health == Health::Warn && unknown.detail.contains("could not be checked"),
            "{unknown}"
        );
        denied.listed = Err("not authorized".into());
        let unknown = judge(&denied).remove(0);
        assert!(unknown.health == Health::Warn && unknown.advice.unwrap().contains("clusterMonitor"));
    }
}
