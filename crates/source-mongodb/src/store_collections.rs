//! Excludes the collections of Lazaret's stores from a stream. Otherwise a letter about an event would
//! be another event.

use bson::{Document, doc};

use crate::error::{ErrorClass, StreamError};
use crate::options::{MongoSourceOptions, Server};
use crate::server::{Connected, connect, hello};

/// The collections of a store in MongoDB, which a stream must not read.
///
/// A stream of a database or a deployment excludes these collections if they are part of what it reads.
/// A stream of one of them is rejected.
#[derive(Clone, Debug)]
pub struct StoreCollections {
    /// The server of the store.
    pub server: Server,
    /// The database of the store.
    pub database: String,
    /// The collection of the letters. The names of all other collections begin with this name and an
    /// underscore.
    pub collection: String,
}

impl StoreCollections {
    /// Returns `true` if a collection belongs to the store.
    pub fn contains(&self, database: &str, collection: &str) -> bool {
        let rest = collection.strip_prefix(&self.collection);
        database == self.database && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    }

    /// Returns `true` if a stream would read these collections, provided that they are on its server.
    fn is_watched(&self, options: &MongoSourceOptions) -> bool {
        match (&options.database, &options.collection) {
            (None, _) => true,
            (Some(database), None) => *database == self.database,
            (Some(database), Some(collection)) => self.contains(database, collection),
        }
    }

    /// Returns the condition that matches events of these collections.
    fn condition(&self) -> Document {
        doc! { "ns.db": &self.database, "ns.coll": { "$regex": format!("^{}(_|$)", escaped(&self.collection)) } }
    }
}

/// Escapes a text for use in a regular expression.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii_punctuation() && character != '_' {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// Returns the conditions that match the events to exclude from a stream.
///
/// # Errors
/// When the stream would read only such events, or a server does not answer.
pub(crate) async fn excluded(
    options: &MongoSourceOptions,
    source: &Connected,
) -> Result<Vec<Document>, StreamError> {
    let mut conditions = Vec::new();
    for store in options.store_collections.iter().filter(|store| store.is_watched(options)) {
        if !is_at(store, source).await? {
            continue;
        }
        if let Some(collection) = &options.collection {
            return Err(StreamError::new(
                ErrorClass::Fatal,
                format!(
                    "{}.{collection} belongs to the store of Lazaret: each letter would be an event of the stream; watch another \
                     collection, or keep the store in another database",
                    store.database
                ),
            ));
        }
        conditions.push(store.condition());
    }
    Ok(conditions)
}

/// Returns `true` if a store is in the deployment that is read, or if this is uncertain. The events of
/// such a store would never end.
async fn is_at(store: &StoreCollections, source: &Connected) -> Result<bool, StreamError> {
    let other = connect(&store.server).await?;
    if source.addresses.iter().any(|address| other.addresses.contains(address)) {
        return Ok(true);
    }
    let (here, there) = (hello(&source.client).await?, hello(&other.client).await?);
    if !may_be_one(&here, &there) {
        return Ok(false);
    }
    let ids = (cluster_id(&source.client).await, cluster_id(&other.client).await);
    Ok(!matches!(ids, (Some(here), Some(there)) if here != there))
}

/// Returns `true` if two answers to `hello` may come from the same deployment. Members of a replica set
/// list the same hosts.
fn may_be_one(here: &Document, there: &Document) -> bool {
    let set = |hello: &Document| hello.get_str("setName").ok().map(ToOwned::to_owned);
    let has_host = |host: &bson::Bson| there.get_array("hosts").is_ok_and(|hosts| hosts.contains(host));
    match (set(here), set(there)) {
        (Some(one), Some(other)) => {
            one == other && here.get_array("hosts").map_or(true, |hosts| hosts.iter().any(has_host))
        }
        (Some(_), None) => !is_router(there),
        (None, Some(_)) => !is_router(here),
        (None, None) => true,
    }
}

fn is_router(hello: &Document) -> bool {
    hello.get_str("msg").is_ok_and(|text| text == "isdbgrid")
}

/// Returns the id of a sharded cluster, if the user may read it.
async fn cluster_id(client: &mongodb::Client) -> Option<bson::Bson> {
    let version = client.database("config").collection::<Document>("version");
    version.find_one(doc! {}).await.ok()??.remove("clusterId")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letters() -> StoreCollections {
        StoreCollections {
            server: Server::Uri("mongodb://localhost".into()),
            database: "shop".into(),
            collection: "dead.letters".into(),
        }
    }

    #[test]
    fn the_collections_of_a_store_are_known_by_their_names() {
        let letters = letters();
        assert!(letters.contains("shop", "dead.letters") && letters.contains("shop", "dead.letters_values"));
        assert!(!letters.contains("other", "dead.letters"));
        assert!(!letters.contains("shop", "dead.lettersx") && !letters.contains("shop", "dead"));
        let expected = doc! { "ns.db": "shop", "ns.coll": { "$regex": r"^dead\.letters(_|$)" } };
        assert_eq!(letters.condition(), expected);
    }

    #[test]
    fn a_stream_reads_them_if_it_watches_their_database() {
        let uri = "mongodb://localhost";
        assert!(letters().is_watched(&MongoSourceOptions::deployment(uri, "all")));
        assert!(letters().is_watched(&MongoSourceOptions::database(uri, "shop")));
        assert!(letters().is_watched(&MongoSourceOptions::collection(uri, "shop", "dead.letters_audit")));
        assert!(!letters().is_watched(&MongoSourceOptions::database(uri, "other")));
        assert!(!letters().is_watched(&MongoSourceOptions::collection(uri, "shop", "orders")));
    }

    #[test]
    fn deployments_are_told_apart_by_the_hosts_of_their_replica_sets() {
        let set = |name: &str, hosts: &[&str]| doc! { "setName": name, "hosts": hosts.to_vec() };
        let router = doc! { "msg": "isdbgrid" };
        let one = set("rs0", &["a:1", "b:1"]);
        assert!(may_be_one(&one, &set("rs0", &["b:1", "c:1"])));
        assert!(!may_be_one(&one, &set("rs0", &["d:1"])));
        assert!(!may_be_one(&one, &set("rs1", &["a:1"])));
        assert!(!may_be_one(&one, &router) && !may_be_one(&router, &one));
        assert!(may_be_one(&router, &router));
        assert!(may_be_one(&doc! {}, &one), "in doubt");
    }
}
