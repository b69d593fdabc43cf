//! Conditions on content, which the store inside cannot evaluate: letters that may match are decrypted, page by page.

use lazaret_core::LetterState;
use lazaret_core::query::{Query, Term};
use lazaret_core::store::{Action, ErrorKind, Matches, PlanRequest, Result, Selection, Store, StoreError};

use crate::store::SealedStore;

/// The letters of a page.
const PAGE: usize = 500;
/// The pages that a count reads (I7).
const COUNT_PAGES: usize = 16;

/// The query of a selection, if it has a condition on content.
pub(crate) fn content_query(selection: &Selection) -> Option<&Query> {
    match selection {
        Selection::Query(query) if query.expr().any_term(&Term::reads_content) => Some(query),
        _ => None,
    }
}

/// Counts the letters that match, up to a bound.
pub(crate) async fn count<S: Store>(store: &SealedStore<S>, query: &Query) -> Result<Matches> {
    let (mut letters, mut after) = (0, None);
    for _ in 0..COUNT_PAGES {
        let page = store.find_opened(query, after.as_deref(), PAGE).await?;
        letters += page.letters.len() as u64;
        after = page.next;
        if after.is_none() {
            return Ok(Matches { letters, exact: true });
        }
    }
    Ok(Matches { letters, exact: false })
}

/// The letters that a plan selects by content, by their ids.
pub(crate) async fn select<S: Store>(
    store: &SealedStore<S>,
    request: &PlanRequest,
    query: &Query,
) -> Result<Selection> {
    // Letters that are named are replayed although they are quarantined; a query has to ask for them.
    let leaves_out =
        |state| state == LetterState::Quarantined && request.action == Action::Retry && !query.names_state();
    let (mut selected, mut after) = (Vec::new(), None);
    loop {
        let page = store.find_opened(query, after.as_deref(), PAGE).await?;
        let found = page.letters.into_iter().filter(|letter| !leaves_out(letter.state));
        selected.extend(found.map(|letter| (letter.queue, letter.id)));
        if selected.len() as u64 > request.max_letters {
            let context = format!("the query selects more than {} letters", request.max_letters);
            return Err(StoreError::not_done(ErrorKind::Invalid, "freeze", context));
        }
        after = page.next;
        if after.is_none() {
            return Ok(Selection::Letters(selected));
        }
    }
}
