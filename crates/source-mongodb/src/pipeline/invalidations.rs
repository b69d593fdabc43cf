//! Lets `invalidate` events pass the stages of a pipeline. A stream ends with that event, and without it
//! the reason is unknown.
//!
//! Of the stages that change streams permit, `$match` and `$redact` drop events. Both are extended by a
//! condition on the operation, unless an earlier stage has removed it.

use bson::{Bson, Document, doc};

use super::merged_root;

const OPERATION: &str = "operationType";
const INVALIDATE: &str = "invalidate";

/// A stage that may drop `invalidate` events, and cannot be extended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Obstacle {
    /// The number of the stage, from 1.
    pub(crate) number: usize,
    pub(crate) stage: String,
    /// The number of the earlier stage that removes the operation.
    pub(crate) behind: usize,
}

/// Returns the stages as sent to the server.
pub(crate) fn let_pass(pipeline: &[Document]) -> Vec<Document> {
    let reach = without_operation(pipeline).unwrap_or(pipeline.len());
    let (before, behind) = pipeline.split_at(reach);
    before.iter().map(extended).chain(behind.iter().cloned()).collect()
}

/// Returns the first stage that may still drop an `invalidate` event.
pub(crate) fn obstacle(pipeline: &[Document]) -> Option<Obstacle> {
    let behind = without_operation(pipeline)?;
    let (at, stage) = pipeline.iter().enumerate().skip(behind).find(|(_, stage)| is_filter(stage))?;
    Some(Obstacle { number: at + 1, stage: stage.keys().next().cloned().unwrap_or_default(), behind })
}

/// Returns `true` if a stage drops events, and none asks for `invalidate` events. The handler then gets
/// none either, although the source does.
pub(crate) fn are_filtered(pipeline: &[Document]) -> bool {
    pipeline.iter().any(is_filter) && !pipeline.iter().any(|stage| stage.values().any(names_invalidation))
}

fn is_filter(stage: &Document) -> bool {
    stage.contains_key("$match") || stage.contains_key("$redact")
}

/// Returns the stage, extended so that it drops no `invalidate` event.
fn extended(stage: &Document) -> Document {
    if let Ok(filter) = stage.get_document("$match") {
        let filters = [doc! { OPERATION: INVALIDATE }, filter.clone()];
        return doc! { "$match": { "$or": filters.to_vec() } };
    }
    if let Some(expression) = stage.get("$redact") {
        // The root is the event, at any level at which the expression is evaluated.
        let is_invalidation = doc! { "$eq": ["$$ROOT.operationType", INVALIDATE] };
        let parts = [Bson::from(is_invalidation), "$$KEEP".into(), expression.clone()];
        return doc! { "$redact": { "$cond": parts.to_vec() } };
    }
    stage.clone()
}

/// Returns the number of stages up to and including the one that removes or changes the operation.
fn without_operation(pipeline: &[Document]) -> Option<usize> {
    pipeline.iter().position(|stage| !keeps_operation(stage)).map(|at| at + 1)
}

fn keeps_operation(stage: &Document) -> bool {
    stage.iter().all(|(operator, argument)| match (operator.as_str(), argument) {
        ("$project", Bson::Document(fields)) => projects_operation(fields),
        ("$set" | "$addFields", Bson::Document(fields)) => !fields.keys().any(|field| is_operation(field)),
        ("$unset", Bson::String(field)) => !is_operation(field),
        ("$unset", Bson::Array(fields)) => !fields.iter().filter_map(Bson::as_str).any(is_operation),
        ("$replaceWith", root) => merges_operation(root),
        ("$replaceRoot", Bson::Document(argument)) => argument.get("newRoot").is_some_and(merges_operation),
        _ => true,
    })
}

fn projects_operation(fields: &Document) -> bool {
    let own: Vec<_> = fields.iter().filter(|(field, _)| is_operation(field)).collect();
    match own.as_slice() {
        [] => fields.iter().any(|(field, value)| field != "_id" && excludes(value)),
        [(field, value)] if field.as_str() == OPERATION => {
            let is_itself = value.as_str().is_none_or(|path| path == "$operationType");
            is_itself && !excludes(value) && value.as_document().is_none()
        }
        _ => false,
    }
}

/// Returns `true` if a value of a projection excludes a field, or a field below it. A projection that
/// excludes a field keeps all others.
fn excludes(value: &Bson) -> bool {
    match value {
        Bson::Boolean(included) => !included,
        Bson::Int32(number) => *number == 0,
        Bson::Int64(number) => *number == 0,
        Bson::Double(number) => *number == 0.0,
        Bson::Document(fields) => {
            fields.iter().any(|(field, value)| !field.starts_with('$') && excludes(value))
        }
        _ => false,
    }
}

fn merges_operation(root: &Bson) -> bool {
    let Some(added) = merged_root(root) else { return false };
    let keeps = |part: &Bson| {
        part.as_document()
            .is_some_and(|fields| !fields.keys().any(|field| is_operation(field) || field.starts_with('$')))
    };
    added.iter().all(keeps)
}

fn is_operation(field: &str) -> bool {
    field == OPERATION || field.strip_prefix(OPERATION).is_some_and(|rest| rest.starts_with('.'))
}

/// Returns `true` if a condition names `invalidate`, other than to exclude it.
fn names_invalidation(condition: &Bson) -> bool {
    match condition {
        Bson::String(text) => text == INVALIDATE,
        Bson::Array(values) => values.iter().any(names_invalidation),
        Bson::Document(fields) => fields.iter().any(|(field, value)| {
            !matches!(field.as_str(), "$ne" | "$nin" | "$not" | "$nor") && names_invalidation(value)
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paid() -> Document {
        doc! { "$match": { "fullDocument.status": "paid" } }
    }

    fn paid_or_invalidation() -> Document {
        doc! { "$match": { "$or": [{ "operationType": "invalidate" }, { "fullDocument.status": "paid" }] } }
    }

    #[test]
    fn stages_that_drop_events_let_invalidations_pass() {
        let redact = doc! { "$redact": { "$cond": ["$fullDocument.secret", "$$PRUNE", "$$DESCEND"] } };
        let hide = doc! { "$unset": "fullDocument.secret" };
        let is_invalidation = doc! { "$eq": ["$$ROOT.operationType", "invalidate"] };
        let inner = doc! { "$cond": ["$fullDocument.secret", "$$PRUNE", "$$DESCEND"] };
        let expected = [
            paid_or_invalidation(),
            hide.clone(),
            doc! { "$redact": { "$cond": [is_invalidation, "$$KEEP", inner] } },
        ];
        let pipeline = [paid(), hide, redact];
        assert_eq!(let_pass(&pipeline), expected);
        assert_eq!(obstacle(&pipeline), None);
    }

    #[test]
    fn a_filter_behind_a_stage_that_removes_the_operation_stays_as_it_is() {
        let stages = [
            doc! { "$project": { "_id": 1, "fullDocument": 1 } },
            doc! { "$project": { "operationType": 0 } },
            doc! { "$project": { "operationType": "$fullDocument.kind", "fullDocument": 1 } },
            doc! { "$project": { "operationType": { "$literal": "x" }, "fullDocument": 1 } },
            doc! { "$unset": "operationType" },
            doc! { "$unset": ["a", "operationType"] },
            doc! { "$set": { "operationType": "x" } },
            doc! { "$addFields": { "operationType.a": 1 } },
            doc! { "$replaceWith": { "$mergeObjects": ["$$ROOT", { "operationType": "x" }] } },
            doc! { "$replaceRoot": { "newRoot": { "$mergeObjects": ["$$ROOT", { "operationType": "x" }] } } },
        ];
        for stage in stages {
            let pipeline = [paid(), stage.clone(), paid()];
            assert_eq!(let_pass(&pipeline), [paid_or_invalidation(), stage.clone(), paid()]);
            let expected = Obstacle { number: 3, stage: "$match".into(), behind: 2 };
            assert_eq!(obstacle(&pipeline), Some(expected), "{stage}");
            assert_eq!(obstacle(&pipeline[..2]), None, "nothing is dropped behind it: {stage}");
        }
    }

    #[test]
    fn a_filter_behind_a_stage_that_keeps_the_operation_is_extended() {
        let stages = [
            doc! { "$project": { "operationType": 1, "fullDocument": 1 } },
            doc! { "$project": { "operationType": "$operationType" } },
            doc! { "$project": { "fullDocument.secret": 0 } },
            doc! { "$project": { "fullDocument": { "secret": false } } },
            doc! { "$set": { "operationTypes": 1 } },
            doc! { "$unset": ["fullDocument.secret"] },
            doc! { "$replaceWith": "$$ROOT" },
            doc! { "$replaceRoot": { "newRoot": { "$mergeObjects": ["$$ROOT", { "extra": 1 }] } } },
        ];
        for stage in stages {
            let pipeline = [stage.clone(), paid()];
            assert_eq!(let_pass(&pipeline), [stage, paid_or_invalidation()]);
            assert_eq!(obstacle(&pipeline), None);
        }
    }

    #[test]
    fn invalidations_are_delivered_unless_a_filter_is_silent_about_them() {
        let asked = |filter: Document| are_filtered(&[doc! { "$match": filter }]);
        assert!(!are_filtered(&[]) && !are_filtered(&[doc! { "$unset": "fullDocument.secret" }]));
        assert!(asked(doc! { "fullDocument.status": "paid" }));
        assert!(asked(doc! { "operationType": { "$ne": "invalidate" } }));
        assert!(asked(doc! { "operationType": { "$nin": ["invalidate"] } }));
        assert!(!asked(doc! { "operationType": { "$in": ["insert", "invalidate"] } }));
        assert!(!asked(doc! { "$or": [{ "operationType": "invalidate" }, { "a": 1 }] }));
    }
}
