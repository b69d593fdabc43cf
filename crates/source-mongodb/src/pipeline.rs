//! Checks that a pipeline keeps the resume token of every event.

mod invalidations;

use bson::{Bson, Document};

pub(crate) use self::invalidations::{are_filtered, let_pass, obstacle};

/// The reason why a pipeline is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PipelineError {
    #[error(
        "stage {number} of the pipeline (`{stage}`) removes or changes `_id`; it is the resume token, and without it the \
         stream cannot resume; keep `_id` as it is"
    )]
    Token { number: usize, stage: String },
    #[error("stage {number} of the pipeline has {fields} fields, expected one: the operator")]
    Shape { number: usize, fields: usize },
    #[error(
        "stage {number} of the pipeline is `$changeStreamSplitLargeEvent`, which is not supported: a fragment is not an event; \
         remove fields with `$project` or `$unset` instead"
    )]
    Split { number: usize },
}

/// Checks that the pipeline keeps the `_id` of the events.
pub(crate) fn check(pipeline: &[Document]) -> Result<(), PipelineError> {
    for (index, stage) in pipeline.iter().enumerate() {
        let number = index + 1;
        let Some((operator, argument)) = stage.iter().next().filter(|_| stage.len() == 1) else {
            return Err(PipelineError::Shape { number, fields: stage.len() });
        };
        if operator == "$changeStreamSplitLargeEvent" {
            return Err(PipelineError::Split { number });
        }
        if !keeps_token(operator, argument) {
            return Err(PipelineError::Token { number, stage: operator.clone() });
        }
    }
    Ok(())
}

fn keeps_token(operator: &str, argument: &Bson) -> bool {
    match (operator, argument) {
        ("$project", Bson::Document(fields)) => {
            fields.iter().all(|(field, value)| !is_token(field) || (field == "_id" && is_included(value)))
        }
        ("$set" | "$addFields", Bson::Document(fields)) => !fields.keys().any(|field| is_token(field)),
        ("$unset", Bson::String(field)) => !is_token(field),
        ("$unset", Bson::Array(fields)) => !fields.iter().filter_map(Bson::as_str).any(is_token),
        ("$replaceWith", root) => merges_root(root),
        ("$replaceRoot", Bson::Document(argument)) => argument.get("newRoot").is_some_and(merges_root),
        ("$replaceRoot", _) => false,
        _ => true,
    }
}

fn is_token(field: &str) -> bool {
    field == "_id" || field.starts_with("_id.")
}

fn is_included(value: &Bson) -> bool {
    match value {
        Bson::Boolean(included) => *included,
        Bson::Int32(included) => *included != 0,
        Bson::Int64(included) => *included != 0,
        Bson::Double(included) => *included != 0.0,
        Bson::String(path) => path == "$_id",
        _ => false,
    }
}

/// Returns `true` if a new root is the old one with additional fields.
fn merges_root(root: &Bson) -> bool {
    let Some(added) = merged_root(root) else { return false };
    added.iter().all(|part| {
        part.as_document()
            .is_some_and(|fields| !fields.keys().any(|field| is_token(field) || field.starts_with('$')))
    })
}

/// Returns what a new root adds to the old one, or `None` if it is not built from the old one.
fn merged_root(root: &Bson) -> Option<&[Bson]> {
    if root.as_str() == Some("$$ROOT") {
        return Some(&[]);
    }
    let merged = root.as_document()?.get_array("$mergeObjects").ok()?;
    let at = merged.iter().position(|part| part.as_str() == Some("$$ROOT"))?;
    merged.get(at + 1..)
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    #[test]
    fn a_pipeline_that_keeps_the_token_is_accepted() {
        let pipeline = [
            doc! { "$match": { "_id": { "$exists": true }, "operationType": "insert" } },
            doc! { "$project": { "fullDocument.secret": 0 } },
            doc! { "$project": { "_id": 1, "fullDocument": 1 } },
            doc! { "$project": { "fullDocument": 1 } },
            doc! { "$set": { "extra": 1 } },
            doc! { "$unset": ["fullDocument.secret", "_ids"] },
            doc! { "$replaceWith": { "$mergeObjects": ["$$ROOT", { "extra": 1 }] } },
        ];
        assert_eq!(check(&pipeline), Ok(()));
    }

    #[test]
    fn a_pipeline_that_removes_or_changes_the_token_is_refused() {
        let stages = [
            doc! { "$project": { "_id": 0, "fullDocument": 1 } },
            doc! { "$project": { "_id": false } },
            doc! { "$project": { "_id": "$documentKey._id" } },
            doc! { "$project": { "_id._data": 1 } },
            doc! { "$set": { "_id": 1 } },
            doc! { "$addFields": { "_id._data": 1 } },
            doc! { "$unset": "_id" },
            doc! { "$unset": ["a", "_id._data"] },
            doc! { "$replaceRoot": { "newRoot": "$fullDocument" } },
            doc! { "$replaceWith": "$fullDocument" },
            doc! { "$replaceWith": { "$mergeObjects": ["$$ROOT", "$fullDocument"] } },
            doc! { "$replaceWith": { "$mergeObjects": ["$$ROOT", { "_id": 1 }] } },
        ];
        for stage in stages {
            let name = stage.keys().next().unwrap().clone();
            let pipeline = [doc! { "$match": {} }, stage];
            assert_eq!(
                check(&pipeline),
                Err(PipelineError::Token { number: 2, stage: name }),
                "{pipeline:?}"
            );
        }
    }

    #[test]
    fn a_stage_has_one_operator() {
        assert_eq!(check(&[doc! {}]), Err(PipelineError::Shape { number: 1, fields: 0 }));
        assert_eq!(
            check(&[doc! { "$match": {}, "$set": {} }]),
            Err(PipelineError::Shape { number: 1, fields: 2 })
        );
        assert_eq!(
            check(&[doc! { "$changeStreamSplitLargeEvent": {} }]),
            Err(PipelineError::Split { number: 1 })
        );
    }
}
