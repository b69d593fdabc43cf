//! Whether an index covers a statement: its equal fields come first, then those of the order, then one range.

use std::collections::BTreeSet;

use bson::{Bson, Document, doc};

use crate::indexes::sign;

/// Fields whose value few documents have: an index of one of them need not contain the others of a statement.
const SELECTIVE: [&str; 5] = ["letter", "token", "claim", "operation.id", "row.lease.operation"];

/// A declared index.
#[derive(Clone, Copy)]
pub(super) struct Declared<'a> {
    pub(super) keys: &'a Document,
    pub(super) only: Option<&'a Document>,
}

/// What a filter says about fields.
#[derive(Default)]
struct Fields<'a> {
    /// Those that have one of some values.
    equal: BTreeSet<&'a str>,
    /// Those that are in a range.
    range: BTreeSet<&'a str>,
    conditions: Vec<(&'a str, &'a Bson)>,
}

impl<'a> Fields<'a> {
    fn of(filter: &'a Document) -> Self {
        let mut fields = Self::default();
        fields.add(filter);
        fields
    }

    fn add(&mut self, filter: &'a Document) {
        for (name, condition) in filter {
            match (name.as_str(), condition) {
                ("$and", Bson::Array(parts)) => {
                    parts.iter().filter_map(Bson::as_document).for_each(|part| self.add(part));
                }
                // What is left out is read all the same.
                (operator, _) if operator.starts_with('$') => {}
                (name, condition) => {
                    self.conditions.push((name, condition));
                    match condition {
                        Bson::Document(operators) if operators.keys().any(|key| key.starts_with('$')) => {
                            if operators.contains_key("$in") || operators.contains_key("$eq") {
                                self.equal.insert(name);
                            } else if operators.keys().any(|key| is_range(key)) {
                                self.range.insert(name);
                            }
                        }
                        _ => drop(self.equal.insert(name)),
                    }
                }
            }
        }
    }

    /// Whether a document that meets the filter is in an index of some documents.
    fn implies(&self, only: &Document) -> bool {
        let is_named = |field: &str, wanted: &Bson| {
            self.conditions.iter().filter(|(name, _)| *name == field).any(|(_, condition)| {
                match (condition, wanted) {
                    (Bson::Document(has), Bson::Document(wanted)) => {
                        wanted.iter().all(|(operator, bound)| has.get(operator) == Some(bound))
                    }
                    (has, wanted) => *has == wanted,
                }
            })
        };
        only.iter().all(|(field, wanted)| is_named(field, wanted))
    }
}

fn is_range(operator: &str) -> bool {
    ["$gt", "$gte", "$lt", "$lte", "$regex"].contains(&operator)
}

/// Why no index covers a statement; `None` if one does.
pub(super) fn uncovered(filter: &Document, sort: &Document, declared: &[Declared<'_>]) -> Option<String> {
    // Each way by itself: the server merges them.
    if let (1, Ok(ways)) = (filter.len(), filter.get_array("$or")) {
        return ways.iter().filter_map(Bson::as_document).find_map(|way| uncovered(way, sort, declared));
    }
    let bounds = within_bounds(filter);
    let fields = Fields::of(bounds.as_ref().unwrap_or(filter));
    if fields.equal.contains("_id") {
        return None;
    }
    let by_id = doc! { "_id": 1 };
    let by_id = Declared { keys: &by_id, only: None };
    let covers = |index: &Declared<'_>| {
        index.only.is_none_or(|only| fields.implies(only)) && covers(index, &fields, sort)
    };
    if declared.iter().chain([&by_id]).any(covers) {
        return None;
    }
    Some(format!("no index begins with {:?}, has the order {sort} and then {:?}", fields.equal, fields.range))
}

/// The filter of a search without the conditions on what it finds within two bounds: these limit what it looks at. `None` for a
/// statement without such bounds.
fn within_bounds(filter: &Document) -> Option<Document> {
    let is_bounded = |condition: &Bson| {
        let operators = condition.as_document();
        operators.is_some_and(|has| has.contains_key("$gte") && has.contains_key("$lt"))
    };
    let mut bounds = filter.clone();
    bounds.remove("$and")?;
    filter.values().any(is_bounded).then_some(bounds)
}

/// Whether an index has what a statement asks for.
fn covers(index: &Declared<'_>, fields: &Fields<'_>, sort: &Document) -> bool {
    let keys = index.keys;
    // All documents in the index have this value.
    let is_given = |field: &str| {
        index.only.and_then(|only| only.get(field)).is_some_and(|value| value.as_document().is_none())
    };
    let mut order = sort.iter().filter(|(field, _)| !fields.equal.contains(field.as_str())).peekable();
    let (mut used, mut direction) = (BTreeSet::new(), None);
    for (key, ascending) in keys {
        if fields.equal.contains(key.as_str()) {
            used.insert(key.as_str());
            continue;
        }
        let Some((field, wanted)) = order.peek() else {
            if fields.range.contains(key.as_str()) {
                used.insert(key.as_str());
            }
            break;
        };
        let along = sign(ascending) * sign(wanted);
        if *field != key || direction.is_some_and(|direction| direction != along) {
            break;
        }
        direction = Some(along);
        used.insert(key.as_str());
        order.next();
    }
    let begins = keys.keys().next().is_some_and(|first| used.contains(first.as_str()));
    let is_selective = used.iter().any(|field| SELECTIVE.contains(field) && fields.equal.contains(field));
    let has_equal = is_selective || fields.equal.iter().all(|field| used.contains(field) || is_given(field));
    begins && order.peek().is_none() && has_equal
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_covered(filter: Document, sort: Document, keys: Document) -> bool {
        uncovered(&filter, &sort, &[Declared { keys: &keys, only: None }]).is_none()
    }

    #[test]
    fn an_order_beyond_the_index_is_not_covered() {
        let free = || doc! { "queue": "q", "open": true, "freeAt": { "$lte": 5 } };
        let sort = || doc! { "freeAt": 1, "sequence": 1 };
        assert!(!is_covered(free(), sort(), doc! { "queue": 1, "open": 1, "freeAt": 1 }));
        assert!(is_covered(free(), sort(), doc! { "queue": 1, "open": 1, "freeAt": 1, "sequence": 1 }));
        assert!(!is_covered(free(), sort(), doc! { "queue": 1, "freeAt": 1, "open": 1 }), "out of order");
    }

    #[test]
    fn an_equal_field_that_the_index_lacks_is_not_covered() {
        let next = || doc! { "plan": 1, "outcome": null, "ordinal": { "$gte": 0 } };
        let sort = || doc! { "ordinal": 1 };
        assert!(!is_covered(next(), sort(), doc! { "plan": 1, "ordinal": 1 }), "finished ones are read");
        assert!(is_covered(next(), sort(), doc! { "plan": 1, "outcome": 1, "ordinal": 1 }));
        let selective = doc! { "letter": "l", "plan": 1, "outcome": null };
        assert!(is_covered(selective, doc! {}, doc! { "letter": 1, "outcome": 1 }));
    }

    #[test]
    fn a_filter_without_an_index_is_not_covered() {
        assert!(!is_covered(doc! {}, doc! {}, doc! { "a": 1 }), "the whole collection");
        assert!(!is_covered(doc! { "b": 1 }, doc! {}, doc! { "a": 1, "b": 1 }));
        assert!(!is_covered(doc! { "a": { "$ne": 1 } }, doc! {}, doc! { "a": 1 }), "nearly all");
        assert!(is_covered(doc! {}, doc! { "_id": -1 }, doc! { "a": 1 }), "in the order of the ids");
        assert!(is_covered(doc! { "_id": { "$in": [1, 2] }, "b": 7 }, doc! {}, doc! { "a": 1 }));
    }

    #[test]
    fn an_index_is_read_in_both_directions_and_in_one_at_a_time() {
        let keys = || doc! { "open": -1, "_id": 1 };
        let open = || doc! { "open": { "$gte": 1 } };
        assert!(is_covered(open(), doc! { "open": -1, "_id": 1 }, keys()));
        assert!(is_covered(open(), doc! { "open": 1, "_id": -1 }, keys()));
        assert!(!is_covered(open(), doc! { "open": 1, "_id": 1 }, keys()));
    }

    #[test]
    fn each_way_of_an_or_has_its_index() {
        let keys = doc! { "queue": 1, "touched": 1 };
        let way = |queue: &str| doc! { "queue": queue, "touched": { "$gt": 1 } };
        let of = |ways: Vec<Document>| is_covered(doc! { "$or": ways }, doc! { "touched": 1 }, keys.clone());
        assert!(of(vec![way("a"), way("b")]));
        assert!(!of(vec![way("a"), doc! { "touched": 1 }]));
        assert!(!is_covered(doc! { "queue": "a", "$or": [{ "x": 1 }] }, doc! { "x": 1 }, keys.clone()));
    }

    #[test]
    fn conditions_on_what_is_found_within_bounds_need_no_index() {
        let keys = doc! { "open": 1, "number": -1 };
        let within = |number: Document| doc! { "open": true, "number": number, "$and": [{ "poison": true }] };
        let sort = || doc! { "number": -1 };
        assert!(is_covered(within(doc! { "$gte": 1, "$lt": 9 }), sort(), keys.clone()));
        assert!(!is_covered(within(doc! { "$lt": 9 }), sort(), keys.clone()), "any number may be looked at");
        assert!(!is_covered(within(doc! { "$gte": 1, "$lt": 9 }), sort(), doc! { "number": -1 }));
    }

    #[test]
    fn an_index_of_some_documents_needs_their_condition() {
        let (keys, only) =
            (doc! { "queue": 1, "expires": 1 }, doc! { "open": true, "expires": { "$gte": i64::MIN } });
        let declared = [Declared { keys: &keys, only: Some(&only) }];
        let is_covered = |filter: Document| uncovered(&filter, &doc! { "expires": 1 }, &declared).is_none();
        let expires = doc! { "$gte": i64::MIN, "$lte": 5 };
        assert!(!is_covered(doc! { "queue": "a", "expires": expires.clone() }), "closed ones are not in it");
        assert!(!is_covered(doc! { "queue": "a", "open": true, "expires": { "$lte": 5 } }));
        assert!(is_covered(doc! { "queue": "a", "open": true, "expires": expires }));
    }
    #[test]
    fn an_index_of_some_documents_gives_them_their_order() {
        let (keys, only) = (doc! { "servedAt": 1, "operation.id": 1 }, doc! { "pending": { "$gt": 0_i64 } });
        let declared = [Declared { keys: &keys, only: Some(&only) }];
        let sort = doc! { "servedAt": 1, "operation.id": 1 };
        assert!(uncovered(&doc! { "pending": { "$gt": 0_i64 } }, &sort, &declared).is_none());
        assert!(uncovered(&doc! { "pending": { "$gte": 0_i64 } }, &sort, &declared).is_some(), "of others");
        assert!(uncovered(&doc! { "live": true }, &sort, &declared).is_some());
    }
}
