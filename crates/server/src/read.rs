//! What can be looked at.

pub(crate) mod audit;
pub(crate) mod groups;
pub(crate) mod health;
pub(crate) mod letters;
pub(crate) mod operations;
pub(crate) mod status;

use lazaret_api::Scope;
use lazaret_core::query::{Query, Term};
use serde::Deserialize;

use crate::auth::Caller;
use crate::fault::Result;

/// Which page of a list is wanted.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct PageParams {
    pub(crate) after: Option<String>,
    pub(crate) limit: Option<usize>,
}

/// Cuts a list that was asked for one thing more than a page holds. Gives the last thing of the page, if there is more: so the
/// end of a list is told with its last page, and nobody asks for an empty one.
pub(crate) fn cut<T>(things: &mut Vec<T>, page: usize) -> Option<&T> {
    let more = things.len() > page;
    things.truncate(page);
    things.last().filter(|_| more)
}

/// Reads a query that this caller may ask. Whoever may not see payloads and headers may not find out about them by asking.
pub(crate) fn query_of(caller: &Caller, text: Option<&str>) -> Result<Query> {
    let query = Query::parse(text.unwrap_or_default())?;
    if query.expr().any_term(&|term| matches!(term, Term::Payload { .. } | Term::Header { .. })) {
        caller.require(Scope::Payload)?;
    }
    Ok(query)
}
