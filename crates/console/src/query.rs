//! Queries: conditions that pages build, and the box for writing a query.

use lazaret_api::{Code, Problem};
use lazaret_core::query::{GroupPattern, Query, Term, Text, TextField};
use lazaret_core::store::GroupId;
use maud::{Markup, html};

use crate::icon::icon;
use crate::text::block;

/// Returns the condition that a field has exactly this value.
pub(crate) fn term(field: TextField, value: &str) -> String {
    Term::Text(field, vec![Text::Exact(value.to_owned())]).to_string()
}

/// Returns the condition that a letter is in one of these groups, or `None` if one of them is not a group id.
pub(crate) fn group_term<'i>(ids: impl IntoIterator<Item = &'i str>) -> Option<String> {
    let pattern = |id: &str| id.parse::<GroupId>().ok().map(|id| GroupPattern::from(&id));
    let patterns: Vec<GroupPattern> = ids.into_iter().map(pattern).collect::<Option<_>>()?;
    Some(Term::Group(patterns).to_string())
}

/// Renders the search box of a page. An invalid query is shown with a mark below the exact place.
pub(crate) fn search_box(action: &str, query: &str, example: &str, error: Option<&Problem>) -> Markup {
    html! {
        form.search.query role="search" action=(action) method="get" {
            div.box {
                (icon("search"))
                input type="search" name="q" value=(query) placeholder=(example) aria-label="Query" autocomplete="off"
                    autocapitalize="off" spellcheck="false" data-search="page"
                    aria-invalid=[error.map(|_| "true")] aria-describedby=[error.map(|_| "query-error")];
            }
            button type="submit" { "Search" }
        }
        @if let Some(error) = error {
            @let text = mark(query, error);
            @let (place, why) = split(&text);
            div.query-error #query-error role="alert" {
                @if let Some(place) = place { pre.caret { (block(place)) } }
                p { (block(why)) }
            }
        }
    }
}

/// Returns where and why a query is invalid. The parser marks the place. A query that the list does not
/// support has no mark.
fn mark(query: &str, problem: &Problem) -> String {
    match Query::parse(query) {
        Err(error) => error.to_string(),
        Ok(_) => {
            let hint = problem.hint.as_deref().map(|hint| format!(": {hint}")).unwrap_or_default();
            format!("{query}\n{}{hint}", problem.detail.as_deref().unwrap_or(&problem.title))
        }
    }
}

/// Splits a marked query from the explanation below it, which may be long.
fn split(text: &str) -> (Option<&str>, &str) {
    let is_mark = |line: &str| line.contains('^') && line.bytes().all(|byte| matches!(byte, b' ' | b'^'));
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        end += line.len();
        if is_mark(line.trim_end()) {
            return (Some(&text[..end]), text[end..].trim());
        }
    }
    (None, text)
}

/// Separates an invalid query, which a page shows in its search box, from other problems.
pub(crate) fn invalid_query(problem: Box<Problem>) -> Result<Box<Problem>, Box<Problem>> {
    if problem.code == Code::InvalidQuery { Ok(problem) } else { Err(problem) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_cannot_leave_their_term() {
        for value in ["plain", "a b", "x\" or state:dead", "-x", "(y)", "a,b", "*", ""] {
            let query = term(TextField::Sequence, value);
            let parsed = Query::parse(&query).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(parsed.to_string(), query, "{value}");
            assert!(!parsed.names_state(), "{value}");
        }
    }

    #[test]
    fn groups_are_selected_by_id() {
        let query = group_term(["g1_0123456789abcdef@shop/mail", "g1_0123456789abcdee@a b"]).unwrap();
        assert!(Query::parse(&query).is_ok(), "{query}");
        assert_eq!(group_term(["nonsense"]), None);
    }

    #[test]
    fn the_mark_stands_under_the_error() {
        let problem = Problem::new(Code::InvalidQuery);
        let shown = search_box("/x", "staet:dead", "", Some(&problem)).into_string();
        assert!(shown.contains("staet:dead\n^^^^^\n"), "{shown}");
    }
}
