//! Syntax errors of queries, with their position.

use std::fmt;
use std::ops::Range;

/// The number of characters of a long query shown before the position of an error, and in all.
const SHOWN_BEFORE: usize = 60;
const SHOWN: usize = 140;

/// A syntax error in a query.
///
/// Displayed, it shows the text with a mark under the exact place, what is wrong there, and what may have been meant.
/// Control characters in the text are shown as other characters, so it is safe to print.
///
/// ```
/// use lazaret_core::query::Query;
/// let error = Query::parse("staet:dead age:>1h").unwrap_err();
/// assert_eq!(error.position(), 0..5);
/// assert_eq!(error.hint(), Some("did you mean state?"));
/// assert_eq!(
///     error.to_string(),
///     "staet:dead age:>1h\n^^^^^\nthere is no field staet: did you mean state?"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryError {
    shown: String,
    mark: Range<usize>,
    position: Range<usize>,
    message: String,
    hint: Option<String>,
}

impl QueryError {
    /// An error at these bytes of a text, which lie between characters.
    pub(super) fn new(text: &str, position: Range<usize>, message: String, hint: Option<String>) -> Self {
        let from = text[..position.start].char_indices().rev().nth(SHOWN_BEFORE - 1).map_or(0, |(at, _)| at);
        let rest = &text[from..];
        let to = rest.char_indices().nth(SHOWN).map_or(text.len(), |(at, _)| from + at);
        let marked = position.start..position.end.clamp(position.start, to);
        let (left, right) = (if from > 0 { "…" } else { "" }, if to < text.len() { "…" } else { "" });
        let shown = format!("{left}{}{right}", harmless(&text[from..to]));
        let start = width(left) + width(&harmless(&text[from..marked.start]));
        let length = width(&harmless(&text[marked])).max(1);
        let message = harmless(&message);
        Self { shown, mark: start..start + length, position, message, hint: hint.map(|hint| harmless(&hint)) }
    }

    /// The place, in bytes of the query.
    pub fn position(&self) -> Range<usize> {
        self.position.clone()
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// A suggestion.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (indent, marks) = (" ".repeat(self.mark.start), "^".repeat(self.mark.len()));
        write!(f, "{}\n{indent}{marks}\n{}", self.shown, self.message)?;
        self.hint.iter().try_for_each(|hint| write!(f, ": {hint}"))
    }
}

impl std::error::Error for QueryError {}

/// The same text with other characters for those that would move the cursor or turn the writing around.
fn harmless(text: &str) -> String {
    let picture = |c: char| match c {
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(c)).unwrap_or('\u{fffd}'),
        '\x7f' => '\u{2421}',
        '\u{80}'..='\u{9f}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' => '\u{fffd}',
        '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' => '\u{fffd}',
        _ => c,
    };
    text.chars().map(picture).collect()
}

/// The approximate width of a text in terminal columns, without a table of all characters.
fn width(text: &str) -> usize {
    let columns = |c: char| match c {
        '\u{300}'..='\u{36f}' | '\u{fe00}'..='\u{fe0f}' => 0,
        '\u{1100}'..='\u{115f}' | '\u{2e80}'..='\u{a4cf}' | '\u{ac00}'..='\u{d7a3}' => 2,
        '\u{f900}'..='\u{faff}' | '\u{fe30}'..='\u{fe6f}' | '\u{ff00}'..='\u{ff60}' => 2,
        '\u{ffe0}'..='\u{ffe6}' | '\u{1f300}'..='\u{1f64f}' | '\u{1f900}'..='\u{1f9ff}' => 2,
        '\u{20000}'..='\u{3fffd}' => 2,
        _ => 1,
    };
    text.chars().map(columns).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, position: Range<usize>) -> (String, String) {
        let told = QueryError::new(text, position, "wrong".into(), None).to_string();
        let mut lines = told.lines();
        (lines.next().unwrap().to_owned(), lines.next().unwrap().to_owned())
    }

    #[test]
    fn the_mark_stands_under_the_place() {
        let table = [
            ("ab cd", 3..5, "ab cd", "   ^^"),
            ("ab", 2..2, "ab", "  ^"),
            ("é ü", 3..5, "é ü", "  ^"),
            ("日本 x", 7..8, "日本 x", "     ^"),
            ("e\u{301} x", 4..5, "e\u{301} x", "  ^"),
            ("a\n\u{1b}[31mb", 7..8, "a␊␛[31mb", "       ^"),
            ("\u{202e}x", 3..4, "\u{fffd}x", " ^"),
        ];
        for (text, position, shown, marks) in table {
            assert_eq!(lines(text, position), (shown.to_owned(), marks.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn of_a_long_query_the_part_around_the_place_is_shown() {
        let text = format!("{}!{}", "é".repeat(5000), "ü".repeat(5000));
        let (shown, marks) = lines(&text, 10_000..10_001);
        assert_eq!(shown.chars().count(), SHOWN + 2);
        assert_eq!(shown.chars().position(|c| c == '!'), Some(marks.len() - 1));
        let (shown, marks) = lines(&text, 0..text.len());
        assert_eq!((shown.chars().count(), marks.len()), (SHOWN + 1, SHOWN));
    }

    #[test]
    fn a_message_cannot_carry_control_characters() {
        let told = QueryError::new("", 0..0, "there is no \u{1b}[2J".into(), Some("\r".into())).to_string();
        assert!(told.chars().all(|c| c == '\n' || !c.is_control()), "{told:?}");
    }
}
