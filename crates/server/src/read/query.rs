//! Parses queries and checks the scopes they need.

use lazaret_api::Scope;
use lazaret_core::query::{Query, Term};

use crate::api_error::Result;
use crate::auth::Caller;

/// Parses a query. A query on payloads or headers needs the scope `payload`: otherwise their contents could be probed.
pub(crate) fn parse_query(caller: &Caller, text: Option<&str>) -> Result<Query> {
    Ok(caller.limit(parse_written(caller, text)?))
}

/// Parses a query without the condition that limits the caller to its consumers, which [`Caller::limit`] adds.
pub(crate) fn parse_written(caller: &Caller, text: Option<&str>) -> Result<Query> {
    let query = Query::parse(text.unwrap_or_default())?;
    if query.expr().any_term(&|term| matches!(term, Term::Payload { .. } | Term::Header { .. })) {
        caller.require(Scope::Payload)?;
    }
    Ok(query)
}
