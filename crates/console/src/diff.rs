//! Computes the difference between two texts, line by line and with a bounded cost.

use maud::{Markup, html};

use crate::payload::json;
use crate::text::block;

/// The maximum number of lines that are compared, not counting equal lines at the start and the end.
const MAX_LINES: usize = 600;
/// The number of equal lines shown around a change.
const CONTEXT: usize = 3;

/// A line of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line<'t> {
    Same(&'t str),
    Removed(&'t str),
    Added(&'t str),
    /// A number of equal lines that are not shown.
    Gap(usize),
}

/// Renders the difference between two payloads. JSON is compared field by field, regardless of line breaks.
pub(crate) fn render(before: &str, after: &str) -> Markup {
    let (as_json, as_text) = (json::lines(before).zip(json::lines(after)), || (lines(before), lines(after)));
    let (one, other) = as_json.unwrap_or_else(as_text);
    let Some(difference) = compare(&one, &other) else {
        return html! { p.muted { "The texts are too long to be compared here. Download both to compare them." } };
    };
    if difference.iter().all(|line| matches!(line, Line::Same(_) | Line::Gap(_))) {
        let what = if before == after { "There is no difference." } else { "Only white space differs." };
        return html! { p.muted { (what) } };
    }
    html! {
        div.diff {
            @for line in difference {
                @match line {
                    Line::Same(text) => div { "  " (block(text)) },
                    Line::Removed(text) => div.removed { span.sr-only { "removed: " } "− " (block(text)) },
                    Line::Added(text) => div.added { span.sr-only { "added: " } "+ " (block(text)) },
                    Line::Gap(lines) => div.gap { "  … " (lines) " equal lines" },
                }
            }
        }
    }
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// Compares lines by their longest common subsequence. Returns `None` if there is too much to compare.
fn compare<'t>(one: &'t [String], other: &'t [String]) -> Option<Vec<Line<'t>>> {
    let start = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let (one_rest, other_rest) = (&one[start..], &other[start..]);
    let end = one_rest.iter().rev().zip(other_rest.iter().rev()).take_while(|(a, b)| a == b).count();
    let (a, b) = (&one_rest[..one_rest.len() - end], &other_rest[..other_rest.len() - end]);
    if a.len() > MAX_LINES || b.len() > MAX_LINES {
        return None;
    }
    let width = b.len() + 1;
    // The length of the longest common subsequence of the lines after each pair.
    let mut longest = vec![0_u16; (a.len() + 1) * width];
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            longest[i * width + j] = match a[i] == b[j] {
                true => longest[(i + 1) * width + j + 1] + 1,
                false => longest[(i + 1) * width + j].max(longest[i * width + j + 1]),
            };
        }
    }
    let mut all: Vec<Line<'t>> = one[..start].iter().map(|line| Line::Same(line)).collect();
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            all.push(Line::Same(&a[i]));
            (i, j) = (i + 1, j + 1);
        } else if i < a.len() && (j == b.len() || longest[(i + 1) * width + j] >= longest[i * width + j + 1])
        {
            all.push(Line::Removed(&a[i]));
            i += 1;
        } else {
            all.push(Line::Added(&b[j]));
            j += 1;
        }
    }
    all.extend(one_rest[one_rest.len() - end..].iter().map(|line| Line::Same(line)));
    Some(folded(&all))
}

/// Omits equal lines that are far from a change.
fn folded<'t>(all: &[Line<'t>]) -> Vec<Line<'t>> {
    let is_change = |line: &Line<'_>| !matches!(line, Line::Same(_));
    let mut near = vec![false; all.len()];
    for (index, _) in all.iter().enumerate().filter(|(_, line)| is_change(line)) {
        let end = (index + CONTEXT + 1).min(all.len());
        near[index.saturating_sub(CONTEXT)..end].fill(true);
    }
    let mut kept = Vec::new();
    let mut left_out = 0;
    for (line, near) in all.iter().zip(near) {
        if near {
            if left_out > 0 {
                kept.push(Line::Gap(std::mem::take(&mut left_out)));
            }
            kept.push(*line);
        } else {
            left_out += 1;
        }
    }
    if left_out > 0 {
        kept.push(Line::Gap(left_out));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn only_changed_lines_differ() {
        let (one, other) = (owned(&["a", "b", "c", "d"]), owned(&["a", "x", "c", "d", "e"]));
        let expected = [
            Line::Same("a"),
            Line::Removed("b"),
            Line::Added("x"),
            Line::Same("c"),
            Line::Same("d"),
            Line::Added("e"),
        ];
        assert_eq!(compare(&one, &other).unwrap(), expected);
        assert_eq!(compare(&one, &one).unwrap(), [Line::Gap(4)]);
        assert_eq!(compare(&[], &[]).unwrap(), []);
    }

    #[test]
    fn far_lines_are_left_out() {
        let one: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        let mut other = one.clone();
        other[50] = "x".to_owned();
        let shown = compare(&one, &other).unwrap();
        assert_eq!((shown.first(), shown.len()), (Some(&Line::Gap(47)), 10));
    }

    #[test]
    fn json_is_compared_by_its_fields_and_numbers_by_their_digits() {
        let shown = render(r#"{"a":1.10,"b":"x"}"#, "{\"a\": 1.1,\n \"b\": \"x\"}").into_string();
        assert!(shown.contains("− </span>") || shown.contains("1.10"), "{shown}");
        assert_eq!(
            (shown.matches("class=\"removed\"").count(), shown.matches("class=\"added\"").count()),
            (1, 1)
        );
        assert!(render("{\"a\":1}", "{ \"a\": 1 }").into_string().contains("white space"));
    }

    #[test]
    fn too_much_is_not_compared() {
        let (one, other): (Vec<String>, Vec<String>) =
            ((0..5000).map(|n| n.to_string()).collect(), (5000..9000).map(|n| n.to_string()).collect());
        assert!(compare(&one, &other).is_none());
    }
}
