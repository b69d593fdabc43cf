//! Makes text from outside visible. Templates escape markup. This module shows characters that hide,
//! reorder or break text.

use lazaret_api::text::needs_escape;
use maud::{Markup, html};

/// Renders text on one line. Invisible characters are shown as their code.
pub(crate) fn visible(text: &str) -> Markup {
    shown(text, false)
}

/// Renders text with its line breaks and tabs, for blocks that keep white space.
pub(crate) fn block(text: &str) -> Markup {
    shown(text, true)
}

fn shown(text: &str, keeps_lines: bool) -> Markup {
    let hides = |c: char| needs_escape(c) && !(keeps_lines && matches!(c, '\n' | '\t'));
    html! {
        @for (plain, hidden) in parts(text, hides) {
            (plain)
            @if let Some(c) = hidden { span.hidden-char title="a character that cannot be seen" { (code_of(c)) } }
        }
    }
}

/// Splits a text at each hidden character.
fn parts(text: &str, hides: impl Fn(char) -> bool) -> Vec<(&str, Option<char>)> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((at, c)) = rest.char_indices().find(|(_, c)| hides(*c)) {
        parts.push((&rest[..at], Some(c)));
        rest = &rest[at + c.len_utf8()..];
    }
    parts.push((rest, None));
    parts
}

/// Returns the code of a character, as written in Rust and in the output of the command line.
fn code_of(c: char) -> String {
    match c {
        '\n' => "\\n".to_owned(),
        '\r' => "\\r".to_owned(),
        '\t' => "\\t".to_owned(),
        c => format!("\\u{{{:x}}}", u32::from(c)),
    }
}

/// Returns the first characters of a long text, followed by an ellipsis.
pub(crate) fn cut(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Returns the type of an error if it is informative. An error that was created from only a text has the
/// type `message`.
pub(crate) fn telling_type(error_type: &str) -> Option<String> {
    (!error_type.is_empty() && error_type != "message").then(|| cut(error_type, 80))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_escaped_and_hidden_characters_are_shown() {
        let shown = visible("<b>&\u{202e}x\u{1b}[2J\n\u{feff}").into_string();
        assert!(shown.starts_with("&lt;b&gt;&amp;<span"), "{shown}");
        for code in ["\\u{202e}", "\\u{1b}", "\\n", "\\u{feff}"] {
            assert!(shown.contains(&format!(">{code}</span>")), "{shown}");
        }
        assert!(!shown.chars().any(needs_escape), "{shown}");
    }

    #[test]
    fn blocks_keep_their_lines() {
        assert_eq!(block("a\n\tb").into_string(), "a\n\tb");
        assert!(block("a\rb").into_string().contains("\\r"));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!((cut("äöü", 2), cut("äö", 2)), ("äö…".to_owned(), "äö".to_owned()));
    }
}
