//! To which shards of a cluster a router sends a statement: to those that have some values of the shard key, or to all.

use bson::{Bson, Document};

use super::part;

/// Where a statement goes, from what its filter says about the shard key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Route {
    /// To the shard that has this value.
    One,
    /// To the shards that have these values.
    Some,
    All,
}

/// Where a statement with this filter goes.
pub(super) fn route(filter: &Document, key: &str) -> Route {
    let of = |(name, condition): (&String, &Bson)| match (name.as_str(), condition) {
        ("$and", Bson::Array(parts)) => {
            let parts = parts.iter().filter_map(Bson::as_document);
            parts.map(|part| route(part, key)).min().unwrap_or(Route::All)
        }
        ("$or", Bson::Array(ways)) => {
            let ways = ways.iter().filter_map(Bson::as_document).map(|way| route(way, key));
            // Each way may name another value.
            ways.max().map_or(Route::All, |worst| worst.max(Route::Some))
        }
        (name, condition) if name == key => match condition {
            Bson::Document(operators) if operators.contains_key("$in") => Route::Some,
            Bson::Document(operators) if operators.contains_key("$eq") => Route::One,
            Bson::Document(operators) if operators.keys().any(|name| name.starts_with('$')) => Route::All,
            _ => Route::One,
        },
        _ => Route::All,
    };
    filter.iter().map(of).min().unwrap_or(Route::All)
}

/// The first field that a filter names.
pub(super) fn first_field(filter: &Document) -> Option<&str> {
    let (name, condition) = filter.iter().next()?;
    match condition {
        Bson::Array(parts) if name.starts_with('$') => first_field(parts.first()?.as_document()?),
        _ => Some(name.as_str()),
    }
}

/// What a router would refuse of the writes of a command, or carry out on all shards.
pub(super) fn wrong_writes(command: &Document, key: &str) -> Vec<String> {
    let Some((name, _)) = command.iter().next() else { return Vec::new() };
    let each = |list: &str| {
        let list = command.get_array(list).map(Vec::as_slice).unwrap_or_default();
        list.iter().filter_map(Bson::as_document)
    };
    let wrong: Vec<String> = match name.as_str() {
        "insert" => each("documents").filter_map(|document| wrong_insert(document, key)).collect(),
        "update" => {
            let of = |update: &Document| wrong_update(&part(update, "q"), &part(update, "u"), update, key);
            each("updates").filter_map(of).collect()
        }
        "delete" => {
            let of = |delete: &Document| wrong_filter(&part(delete, "q"), is_one(delete.get("limit")), key);
            each("deletes").filter_map(of).collect()
        }
        "findAndModify" | "findandmodify" => {
            wrong_filter(&part(command, "query"), true, key).into_iter().collect()
        }
        _ => Vec::new(),
    };
    let tell = |why: String| format!("{name} in {}: {why}", command.get_str(name).unwrap_or_default());
    wrong.into_iter().map(tell).collect()
}

fn is_one(limit: Option<&Bson>) -> bool {
    matches!(limit, Some(Bson::Int32(1) | Bson::Int64(1)))
}

fn wrong_insert(document: &Document, key: &str) -> Option<String> {
    let has_key = document.get(key).is_some_and(|value| *value != Bson::Null);
    (!has_key).then(|| format!("a document has no {key}"))
}

fn wrong_filter(filter: &Document, is_single: bool, key: &str) -> Option<String> {
    let allowed = if is_single { Route::One } else { Route::Some };
    (route(filter, key) > allowed).then(|| format!("{filter} does not name {key}"))
}

fn wrong_update(filter: &Document, update: &Document, statement: &Document, key: &str) -> Option<String> {
    let is = |name: &str| statement.get_bool(name).unwrap_or(false);
    let wrong = wrong_filter(filter, !is("multi") || is("upsert"), key);
    if wrong.is_some() {
        return wrong;
    }
    let is_replacement = update.keys().next().is_some_and(|first| !first.starts_with('$'));
    let keeps_key = match is_replacement {
        true => update.get(key) == filter.get(key),
        false => !update.values().filter_map(Bson::as_document).any(|fields| fields.contains_key(key)),
    };
    (!keeps_key).then(|| format!("{filter} changes {key}"))
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    #[test]
    fn a_statement_goes_where_the_values_of_its_key_are() {
        for (filter, expected) in [
            (doc! { "_id": "a", "version": 7 }, Route::One),
            (doc! { "_id": { "$eq": "a" } }, Route::One),
            (doc! { "version": 7, "_id": { "$in": ["a", "b"] } }, Route::Some),
            (doc! { "$and": [{ "x": 1 }, { "_id": "a" }] }, Route::One),
            (doc! { "$or": [{ "_id": "a" }, { "_id": "b", "x": 1 }] }, Route::Some),
            (doc! { "$or": [{ "_id": "a" }, { "x": 1 }] }, Route::All),
            (doc! { "_id": { "$gt": "a" } }, Route::All),
            (doc! { "queue": "a" }, Route::All),
            (doc! {}, Route::All),
        ] {
            assert_eq!(route(&filter, "_id"), expected, "{filter}");
        }
    }

    #[test]
    fn the_first_field_of_a_filter_is_that_of_its_first_part() {
        assert_eq!(first_field(&doc! { "queue": 1, "open": true }), Some("queue"));
        assert_eq!(first_field(&doc! { "$or": [{ "$and": [{ "plan": 1 }] }, { "x": 1 }] }), Some("plan"));
        assert_eq!(first_field(&doc! {}), None);
    }

    #[test]
    fn a_write_without_its_key_is_wrong() {
        let updates = |update: Document| doc! { "update": "letters", "updates": [update] };
        let deletes = |filter: Document, limit: i32| {
            doc! { "delete": "letters", "deletes": [{ "q": filter, "limit": limit }] }
        };
        let some = || doc! { "_id": { "$in": ["a", "b"] } };
        let set = || doc! { "$set": { "x": 1 } };
        for right in [
            doc! { "find": "letters", "filter": {} },
            doc! { "insert": "letters", "documents": [{ "_id": "a" }] },
            updates(
                doc! { "q": { "_id": "a", "version": 1 }, "u": { "_id": "a", "version": 2 }, "upsert": true },
            ),
            updates(doc! { "q": some(), "u": set(), "multi": true }),
            deletes(some(), 0),
            deletes(doc! { "_id": "a" }, 1),
            doc! { "findAndModify": "letters", "query": { "_id": "a" } },
        ] {
            assert_eq!(wrong_writes(&right, "_id"), [] as [String; 0], "{right}");
        }
        for wrong in [
            doc! { "insert": "letters", "documents": [{ "x": 1 }] },
            updates(doc! { "q": { "x": 1 }, "u": set() }),
            updates(doc! { "q": some(), "u": set() }),
            updates(doc! { "q": some(), "u": set(), "multi": true, "upsert": true }),
            updates(doc! { "q": { "x": 1 }, "u": set(), "multi": true }),
            updates(doc! { "q": { "_id": "a" }, "u": { "_id": "b" } }),
            updates(doc! { "q": { "_id": "a" }, "u": { "$set": { "_id": "b" } } }),
            deletes(doc! { "x": 1 }, 0),
            deletes(some(), 1),
            doc! { "findAndModify": "letters", "query": { "x": 1 } },
        ] {
            assert_eq!(wrong_writes(&wrong, "_id").len(), 1, "{wrong}");
        }
    }
}
