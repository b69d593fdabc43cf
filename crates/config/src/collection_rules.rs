//! Checks the collection that receives copies of dead letters.

use crate::code::Code;
use crate::diagnostic::{FindingBuilder, Findings};
use crate::document::Document;
use crate::formats::StoreLocation;
use crate::source::Span;
use crate::value::{Fields, Value};

/// The database of a store whose URI names none, followed by the collection of its letters. The store
/// uses the same names.
const STORE_DATABASE: &str = "lazaret";
const STORE_COLLECTION: &str = "lazaret_letters";

/// The servers and the database of a URI. Different spellings of a server count as different servers.
#[derive(PartialEq, Eq)]
struct Place<'a> {
    hosts: Vec<&'a str>,
    database: Option<&'a str>,
}

impl<'a> Place<'a> {
    fn of(uri: &'a str) -> Self {
        let rest = uri.split_once("://").map_or(uri, |(_, rest)| rest);
        let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
        let database = rest.strip_prefix('/').map(|rest| rest.split('?').next().unwrap_or_default());
        Self { hosts: hosts.split(',').collect(), database: database.filter(|name| !name.is_empty()) }
    }

    fn shares_a_server(&self, other: &Self) -> bool {
        self.hosts.iter().any(|host| other.hosts.contains(host))
    }
}

pub(crate) fn check(document: &Document, fields: &Fields, findings: &mut Findings) {
    let top = &document.top;
    let Some(letters) = fields.section("dead-letter") else { return };
    let own = letters.text("collection-uri");
    let mut refuse = |span: Span, message: &str, related: Option<(Span, &str)>, hint: &str| {
        let finding = FindingBuilder::new(Code::Contradiction, span, message);
        let finding = match related {
            Some((span, label)) => finding.related(span, label),
            None => finding,
        };
        findings.add(finding.hint(hint));
    };
    let Some(name) = letters.text("collection") else {
        if let Some(span) =
            letters.span("collection-uri").filter(|_| !letters.invalid.contains(&"collection"))
        {
            let hint = "add `collection: NAME`, or remove the key";
            refuse(span, "`collection-uri` is set, but `collection` is missing", None, hint);
        }
        return;
    };
    let span = letters.span("collection").unwrap_or_default();
    if let Some(topic) = letters.span("topic") {
        let message = "`collection` and `topic` are both set: copies go to one of them";
        refuse(span, message, Some((topic, "the other one")), "remove one of them");
    }
    let retry = fields.section("retry");
    if let Some(retry) = retry.filter(|retry| retry.text("strategy") == Some("topics")) {
        let related = retry.span("strategy").map(|span| (span, "dead letters are in a topic"));
        refuse(
            span,
            "`collection` is for dead letters in the store",
            related,
            "remove the key, or use another strategy",
        );
    }
    if let Some(encryption) = top.span("encryption") {
        let related = Some((encryption, "letters are encrypted in the store"));
        refuse(
            span,
            "the copies in `collection` would not be encrypted",
            related,
            "remove the key, or `encryption`",
        );
    }
    let store = match top.get("store").map(|field| &field.value) {
        Some(Value::Store(StoreLocation::Mongodb(uri))) => Some(uri.as_str()),
        _ => None,
    };
    let place = match (own.map(Place::of), store.map(Place::of)) {
        (Some(Place { database: None, .. }), _) => {
            let span = letters.span("collection-uri").unwrap_or(span);
            let hint = "write `mongodb://HOST/DATABASE`";
            return refuse(span, "`collection-uri` names no database", None, hint);
        }
        (Some(own), _) => own,
        (None, Some(store)) => Place { database: store.database.or(Some(STORE_DATABASE)), ..store },
        // An invalid URI is reported separately.
        (None, None) if letters.invalid.contains(&"collection-uri") || top.invalid.contains(&"store") => {
            return;
        }
        (None, None) => {
            let hint = "add `collection-uri: mongodb://HOST/DATABASE`";
            return refuse(span, "`collection` needs `collection-uri`: the store is not MongoDB", None, hint);
        }
    };
    if let Some(store) = store {
        let at = Place::of(store);
        let same = at.shares_a_server(&place)
            && at.database.unwrap_or(STORE_DATABASE) == place.database.unwrap_or_default();
        let letters = parameter(store, "collection").unwrap_or(STORE_COLLECTION);
        if same && (name == letters || name.starts_with(&format!("{letters}_"))) {
            let related = top.span("store").map(|span| (span, "the store"));
            refuse(span, "`collection` is a collection of the store", related, "name another collection");
        }
    }
    let Some(("mongodb", mongodb)) = fields.section("source").and_then(Fields::chosen) else { return };
    let watched = mongodb.text("uri").map(Place::of);
    // A stream of a whole database or deployment ignores the collection.
    let same = watched.is_some_and(|watched| watched.shares_a_server(&place))
        && mongodb.text("database").is_some_and(|database| Some(database) == place.database)
        && mongodb.text("collection") == Some(name);
    if same {
        let source = mongodb.span("collection").or(mongodb.span("database")).or(mongodb.span("uri"));
        let related = source.map(|span| (span, "the source"));
        let hint = "name a collection that the source does not watch, in another database or cluster";
        refuse(span, "the source watches `collection`: it would read its own dead letters", related, hint);
    }
}

/// Returns a parameter of a URI, as written.
fn parameter<'a>(uri: &'a str, name: &str) -> Option<&'a str> {
    let (_, parameters) = uri.split_once('?')?;
    let named = parameters.split('&').filter_map(|parameter| parameter.split_once('='));
    named.into_iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use crate::env::NoEnv;
    use crate::load::check;

    const MONGODB: &str = "{ mongodb: { uri: 'mongodb://a,b/', database: shop, collection: orders } }";

    /// Returns the messages for a consumer with this store, this source and these dead-letter keys.
    fn said(store: &str, source: &str, letters: &str) -> String {
        let text = format!(
            "store: {store}\nconsumers:\n  orders:\n    source: {source}\n    handler: {{ command: {{ program: [./h] }} }}\n    dead-letter: {{ {letters} }}\n"
        );
        check("lazaret.yaml", text.as_bytes(), &NoEnv).diagnostics.plain()
    }

    #[test]
    fn a_collection_is_in_the_store_or_in_a_database_of_its_own() {
        let sqlite = "sqlite:lazaret.db";
        let deployment = "{ mongodb: { uri: 'mongodb://a' } }";
        for (store, source, letters) in [
            ("mongodb://h/shop", "{ inbox: {} }", "collection: orders_dlq"),
            ("mongodb://a/shop", MONGODB, "collection: orders_dlq"),
            (sqlite, MONGODB, "collection: _fw_dlq, collection-uri: 'mongodb://a/shop'"),
            (sqlite, MONGODB, "collection: orders, collection-uri: 'mongodb://a/archive'"),
            (sqlite, MONGODB, "collection: orders, collection-uri: 'mongodb://c/shop?replicaSet=rs0'"),
            (sqlite, deployment, "collection: dlq, collection-uri: 'mongodb://a/any'"),
            (
                "mongodb://h/shop",
                "{ inbox: {} }",
                "collection: lazaret_letters, collection-uri: 'mongodb://h/archive'",
            ),
        ] {
            let said = said(store, source, letters);
            assert!(!said.contains("error"), "{letters}: {said}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let (sqlite, inbox) = ("sqlite:lazaret.db", "{ inbox: {} }");
        for (store, source, letters, expected) in [
            (
                sqlite,
                inbox,
                "collection: dlq",
                "`collection` needs `collection-uri`: the store is not MongoDB",
            ),
            (sqlite, inbox, "collection-uri: 'mongodb://h/shop'", "but `collection` is missing"),
            (sqlite, inbox, "collection: dlq, collection-uri: 'mongodb://h'", "names no database"),
            (sqlite, inbox, "collection: dlq, collection-uri: 'http://h/x'", "is not a URL with the scheme"),
            (
                sqlite,
                inbox,
                "collection: 'a$b', collection-uri: 'mongodb://h/shop'",
                "is not a valid name of a collection",
            ),
            (
                sqlite,
                MONGODB,
                "collection: orders, collection-uri: 'mongodb://b/shop'",
                "its own dead letters",
            ),
            ("mongodb://h", inbox, "collection: lazaret_letters", "is a collection of the store"),
            ("mongodb://h/x?collection=shop", inbox, "collection: shop_meta", "is a collection of the store"),
            (
                sqlite,
                "{ kafka: { brokers: 'k:9092', topics: [orders] } }",
                "topic: dlt, collection: dlq, collection-uri: 'mongodb://h/shop'",
                "`collection` and `topic` are both set",
            ),
        ] {
            let said = said(store, source, letters);
            assert!(said.contains("error") && said.contains(expected), "{letters}: {said}");
        }
    }

    #[test]
    fn copies_are_neither_for_letters_in_topics_nor_for_encrypted_ones() {
        let text = "store: sqlite:lazaret.db
encryption: { keys: [{ file: /etc/lazaret/key }] }
consumers:
  orders:
    source: { kafka: { brokers: 'k:9092', topics: [orders] } }
    handler: { command: { program: [./h] } }
    retry: { strategy: topics }
    dead-letter: { collection: dlq, collection-uri: 'mongodb://h/shop' }
";
        let said = check("lazaret.yaml", text.as_bytes(), &NoEnv).diagnostics.plain();
        assert!(
            said.contains("would not be encrypted") && said.contains("is for dead letters in the store"),
            "{said}"
        );
    }
}
