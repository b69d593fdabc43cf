//! Validates the selection of letters in a request.

use lazaret_api::{Code, Problem, Selection};
use lazaret_core::LetterId;

use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;
use crate::read::query::parse_written;
use crate::read::search::Search;

/// A validated selection.
pub(super) enum Selected {
    Query(Search),
    Ids(Vec<LetterId>),
}

/// Validates a selection: a query or ids. An empty query needs `all`.
pub(super) fn select(app: &App, caller: &Caller, selection: &Selection) -> Result<Selected> {
    match (&selection.query, &selection.ids) {
        (Some(_), Some(_)) => Err(ApiError::invalid("/ids", "give a query or ids, not both")),
        (query, None) => {
            let query = parse_written(app, caller, query.as_deref()).map_err(|mut error| {
                if error.problem.code == Code::InvalidQuery {
                    error.problem.pointer = Some("/query".to_owned());
                }
                error
            })?;
            if query.is_everything() && !selection.all {
                let hint = "set \"all\": true to select every open letter";
                return Err(Problem::new(Code::Everything).at("/query").with_hint(hint).into());
            }
            Ok(Selected::Query(Search::new(app, caller, caller.limit(query))))
        }
        (None, Some(ids)) => {
            let most = app.options.limits.named_letters;
            if ids.len() > most {
                let detail = format!("{} ids exceed the limit of {most}: use a query", ids.len());
                return Err(ApiError::invalid("/ids", detail));
            }
            let parse = |(index, id): (usize, &String)| {
                let invalid =
                    || ApiError::invalid(&format!("/ids/{index}"), format!("invalid letter id {id:?}"));
                id.parse().map_err(|_| invalid())
            };
            Ok(Selected::Ids(ids.iter().enumerate().map(parse).collect::<Result<_>>()?))
        }
    }
}
