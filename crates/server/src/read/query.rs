//! Parses queries and checks the scopes they need.

use lazaret_api::{Code, Scope};
use lazaret_core::query::{Query, Term};

use super::search::Search;
use crate::api_error::{ApiError, Result};
use crate::app::App;
use crate::auth::Caller;

/// Parses a query. A query on payloads or headers needs the scope `payload`, and one on redacted values the scope `reveal`: otherwise
/// they could be probed.
pub(crate) fn parse_query(app: &App, caller: &Caller, text: Option<&str>) -> Result<Search> {
    Ok(Search::new(app, caller, caller.limit(parse_written(app, caller, text)?)))
}

/// Parses a query without the condition that limits the caller to its consumers, which [`Caller::limit`] adds.
pub(crate) fn parse_written(app: &App, caller: &Caller, text: Option<&str>) -> Result<Query> {
    let query = Query::parse(text.unwrap_or_default())?;
    if query.expr().any_term(&|term| matches!(term, Term::Payload { .. } | Term::Header { .. })) {
        caller.require(Scope::Payload)?;
    }
    let redacted = |term: &Term| app.options.redaction.covers_term(term);
    if !caller.identity.may(Scope::Reveal) && query.expr().any_term(&redacted) {
        let detail = format!(
            "the query compares a redacted value, which needs the scope {}; {} does not have it",
            Scope::Reveal,
            caller.identity.name
        );
        return Err(ApiError::new(Code::Forbidden, detail));
    }
    Ok(query)
}
