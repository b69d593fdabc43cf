//! Renders a JSON payload as a foldable tree, with a bounded depth and a bounded number of nodes.

use maud::{Markup, html};

use super::json::{Value, parse};
use crate::text::{cut, visible};

/// The maximum number of nodes in a tree, followed by its maximum depth and the number of levels that
/// are initially open.
const MAX_NODES: usize = 2000;
const MAX_DEPTH: usize = 48;
const OPEN_DEPTH: usize = 3;
/// The maximum length of a string. Longer strings are cut, and the text view shows them whole.
const MAX_STRING: usize = 2000;

/// Renders a value. Returns `None` if it is not JSON.
pub(crate) fn render(text: &str) -> Option<Markup> {
    let value = parse(text)?;
    let mut left = MAX_NODES;
    let tree = node(None, &value, 0, &mut left);
    Some(html! {
        div.tree { (tree) }
        @if left == 0 { p.muted { "The tree shows the first " (MAX_NODES) " nodes. The text and the download are complete." } }
    })
}

fn node(name: Option<&str>, value: &Value<'_>, depth: usize, left: &mut usize) -> Markup {
    *left = left.saturating_sub(1);
    match value {
        Value::Object(fields) => {
            let children: Vec<(Option<&str>, &str)> =
                fields.iter().map(|(name, value)| (Some(name.as_str()), *value)).collect();
            branch(name, ("{", "}"), &children, depth, left)
        }
        Value::Array(items) => {
            let children: Vec<(Option<&str>, &str)> = items.iter().map(|value| (None, *value)).collect();
            branch(name, ("[", "]"), &children, depth, left)
        }
        Value::String(text) => {
            leaf(name, &html! { span.string { "\"" (visible(&cut(text, MAX_STRING))) "\"" } })
        }
        Value::Number(text) => leaf(name, &html! { span.number { (text) } }),
        Value::Word(text) => leaf(name, &html! { span.word { (text) } }),
    }
}

fn key(name: Option<&str>) -> Markup {
    html! { @if let Some(name) = name { span.key { "\"" (visible(&cut(name, MAX_STRING))) "\"" } ": " } }
}

fn leaf(name: Option<&str>, value: &Markup) -> Markup {
    html! { div.leaf { (key(name)) (value) } }
}

fn branch(
    name: Option<&str>,
    (open, close): (&str, &str),
    children: &[(Option<&str>, &str)],
    depth: usize,
    left: &mut usize,
) -> Markup {
    if children.is_empty() {
        return leaf(name, &html! { (open) (close) });
    }
    let mut shown = Vec::new();
    if depth < MAX_DEPTH {
        for (name, text) in children {
            if *left == 0 {
                break;
            }
            shown.push(match parse(text) {
                Some(value) => node(*name, &value, depth + 1, left),
                None => leaf(*name, &html! { (visible(&cut(text, MAX_STRING))) }),
            });
        }
    }
    let hidden = children.len() - shown.len();
    html! {
        details open[depth < OPEN_DEPTH] {
            summary { (key(name)) (open) span.count { " " (children.len()) " " } (close) }
            div.children {
                @for child in &shown { (child) }
                @if hidden > 0 { div.leaf.count { "… " (hidden) " more" } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exact_and_text_is_escaped() {
        let shown = render(r#"{"<b>": 9007199254740993, "x": "<img src=x onerror=alert(1)>\u202e"}"#)
            .unwrap()
            .into_string();
        assert!(shown.contains("9007199254740993") && shown.contains("&lt;img src=x"), "{shown}");
        assert!(!shown.contains("<img") && !shown.contains("<b>") && shown.contains("\\u{202e}"), "{shown}");
    }

    #[test]
    fn a_tree_is_bounded() {
        let wide = render(&format!("[{}1]", "1,".repeat(10_000))).unwrap().into_string();
        assert!(
            wide.matches("class=\"number\"").count() <= MAX_NODES && wide.contains("more"),
            "{}",
            wide.len()
        );
        let deep = render(&format!("{}1{}", "[".repeat(100), "]".repeat(100))).unwrap().into_string();
        assert_eq!(deep.matches("<details").count(), MAX_DEPTH + 1);
        assert!(render("not json").is_none());
    }
}
