//! Applies the `$match` stages of a stream to an event, as far as the tests need it.

use bson::{Bson, Document};

/// Returns whether an event passes the `$match` stages of a pipeline.
pub(crate) fn passes(pipeline: &[Document], event: &Document) -> bool {
    pipeline.iter().filter_map(|stage| stage.get_document("$match").ok()).all(|filter| matches(filter, event))
}

fn matches(filter: &Document, event: &Document) -> bool {
    let parts = |value: &Bson| -> Vec<bool> {
        let parts = value.as_array().unwrap().iter();
        parts.map(|part| matches(part.as_document().unwrap(), event)).collect()
    };
    filter.iter().all(|(field, value)| match field.as_str() {
        "$comment" => true,
        "$or" => parts(value).contains(&true),
        "$nor" => !parts(value).contains(&true),
        other => {
            assert!(!other.starts_with('$'), "unknown operator {other}");
            holds(value, find(event, other))
        }
    })
}

fn find<'a>(event: &'a Document, path: &str) -> Option<&'a Bson> {
    match path.split_once('.') {
        Some((first, rest)) => find(event.get_document(first).ok()?, rest),
        None => event.get(path),
    }
}

fn holds(condition: &Bson, found: Option<&Bson>) -> bool {
    let Some(operators) = condition.as_document() else { return found == Some(condition) };
    operators.iter().all(|(operator, value)| match operator.as_str() {
        "$in" => found.is_some_and(|found| value.as_array().unwrap().contains(found)),
        // A name, or names that begin with it and an underscore.
        "$regex" => {
            let name = value.as_str().unwrap().strip_prefix('^').unwrap().strip_suffix("(_|$)").unwrap();
            let rest = found.and_then(Bson::as_str).and_then(|text| text.strip_prefix(name));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        }
        other => panic!("unknown operator {other}"),
    })
}
