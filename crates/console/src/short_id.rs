//! Short ids: finds a group or a letter by a unique prefix of its id, as the command line prints and
//! accepts them.

use lazaret_api::{Code, GroupPage, LetterPage, Problem};
use lazaret_core::query::Query;
use serde::de::DeserializeOwned;

use crate::api::{Result, with_query};
use crate::links;
use crate::visit::{Answer, Visit};

/// The minimum length of a prefix of a letter's id.
const MIN_PREFIX: usize = 4;
/// The length of a complete letter id.
const LETTER_ID: usize = 36;

/// Redirects to the group with this prefix, if the API knows no group with that id.
///
/// # Errors
/// With the problem of the API if it is a different one, or if not exactly one group has the prefix.
pub(crate) async fn group(visit: &Visit, prefix: &str, problem: Box<Problem>) -> Result<Answer> {
    let is_word = prefix.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let query = format!("group:{prefix} state:open,closed");
    if problem.code != Code::NotFound || !is_word || Query::parse(&query).is_err() {
        return Err(problem);
    }
    let ids = |page: GroupPage| (page.groups.into_iter().map(|group| group.id).collect(), page.next);
    let found = matching(visit, "/v1/groups", &query, ids).await?;
    Ok(Answer::SeeOther(links::group(&only(prefix, found, problem)?)))
}

/// Redirects to the letter with this prefix, if the API knows no letter with that id.
///
/// # Errors
/// As for [`find_letter`].
pub(crate) async fn letter(visit: &Visit, prefix: &str, problem: Box<Problem>) -> Result<Answer> {
    Ok(Answer::SeeOther(links::letter(&find_letter(visit, prefix, problem).await?)))
}

/// Returns the complete id of the letter with this prefix, if the API knows no letter with that id.
///
/// # Errors
/// With the problem of the API if it is a different one, or if not exactly one letter has the prefix.
pub(crate) async fn find_letter(visit: &Visit, prefix: &str, problem: Box<Problem>) -> Result<String> {
    let is_prefix = (MIN_PREFIX..LETTER_ID).contains(&prefix.len())
        && prefix.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    if problem.code != Code::NotFound || !is_prefix {
        return Err(problem);
    }
    let query = format!("id:{}* state:open,closed", prefix.to_ascii_lowercase());
    let ids = |page: LetterPage| (page.letters.into_iter().map(|letter| letter.id).collect(), page.next);
    only(prefix, matching(visit, "/v1/letters", &query, ids).await?, problem)
}

/// Returns the first ids that match a query. If several match, returns more than one.
async fn matching<P: DeserializeOwned>(
    visit: &Visit,
    list: &str,
    query: &str,
    ids: fn(P) -> (Vec<String>, Option<String>),
) -> Result<Vec<String>> {
    let (mut found, mut after) = (Vec::new(), None::<String>);
    loop {
        let values = [("q", Some(query)), ("after", after.as_deref()), ("limit", Some("100"))];
        let (more, next) = ids(visit.api.get(&with_query(list, &values)).await?);
        found.extend(more);
        after = next;
        if found.len() > 1 || after.is_none() {
            return Ok(found);
        }
    }
}

fn only(prefix: &str, found: Vec<String>, missing: Box<Problem>) -> Result<String> {
    match found.as_slice() {
        [] => Err(missing),
        [one] => Ok(one.clone()),
        [one, other, ..] => {
            let detail = format!("{prefix} is the beginning of {one} and of {other}");
            Err(Box::new(
                Problem::new(Code::NotFound)
                    .with_detail(detail)
                    .with_hint("open one of them by its whole id"),
            ))
        }
    }
}
