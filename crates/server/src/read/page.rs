//! Pages of lists.

use serde::Deserialize;

/// The page to return.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct PageParams {
    pub(crate) after: Option<String>,
    pub(crate) limit: Option<usize>,
}

/// Cuts a list that was read with one item more than a page holds. Returns the last item of the page if there are more: the last
/// page is known as such, and no client requests an empty one.
pub(crate) fn cut<T>(items: &mut Vec<T>, page: usize) -> Option<&T> {
    let more = items.len() > page;
    items.truncate(page);
    items.last().filter(|_| more)
}
