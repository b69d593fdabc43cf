//! What a parser's complaint means for the person who wrote the file.

use granit_parser::{ErrorKind, ScanError};

use crate::code::Code;
use crate::diagnostic::{Finding, Trouble};
use crate::secrets::is_secret_name;
use crate::source::Span;

/// From the parser's error to a finding that says what to do.
pub(crate) fn explain(text: &str, error: &ScanError) -> Finding {
    let at = error.marker().byte_offset().unwrap_or(text.len()).min(text.len());
    if let Some(tab) = tab_in_indentation(text, at) {
        let finding = Trouble::new(Code::Tab, Span::new(tab, tab + 1), "a tab stands in the indentation");
        return finding.hint("indent with spaces");
    }
    let place = shown_place(text, at);
    match error.kind() {
        ErrorKind::RecursionLimitExceeded => {
            Trouble::new(Code::TooDeep, place, "the file is nested more than 64 levels deep")
                .hint("no configuration needs so many: look for a bracket or a dash too many")
        }
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabAtBlockScalarStart
        | ErrorKind::TabInPlainScalar => {
            Trouble::new(Code::Tab, place, "a tab stands where YAML wants spaces").hint("use spaces")
        }
        ErrorKind::InvalidIndentation
        | ErrorKind::ExpectedBlockMappingKey
        | ErrorKind::ExpectedBlockSequenceEntry
        | ErrorKind::BlockSequenceEntryNotAllowed
        | ErrorKind::MappingKeyNotAllowed => {
            Trouble::new(Code::Indentation, place, "this line does not fit into the indentation")
                .hint("keys of one section begin in the same column")
        }
        ErrorKind::MappingValueNotAllowed => second_colon(text, at),
        ErrorKind::SimpleKeyExpected | ErrorKind::InvalidSimpleKey => without_colon(text, place),
        ErrorKind::UnclosedQuotedScalar | ErrorKind::InvalidQuotedScalarIndent => {
            let open = opening_quote(text, at).map_or(place, |quote| Span::new(quote, quote + 1));
            Trouble::new(Code::Syntax, open, "this quote is never closed").hint("add the closing quote")
        }
        ErrorKind::UnclosedFlowCollection { open } | ErrorKind::MismatchedFlowCollectionEnd { open, .. } => {
            Trouble::new(Code::Syntax, place, format!("the `{open}` is not closed"))
                .hint(brace_hint(text, at))
        }
        ErrorKind::UnexpectedEofFlowMapping
        | ErrorKind::UnexpectedEofImplicitFlowMapping
        | ErrorKind::ExpectedFlowMappingSeparator => {
            Trouble::new(Code::Syntax, place, "expected `,` or `}` here").hint(brace_hint(text, at))
        }
        ErrorKind::UnexpectedEofFlowSequence | ErrorKind::ExpectedFlowSequenceSeparator => {
            Trouble::new(Code::Syntax, place, "expected `,` or `]` here")
                .hint("close the list, or put the value in quotes")
        }
        ErrorKind::UnexpectedCharacter { character } if character.is_control() => {
            Trouble::new(Code::Syntax, place, "there is a control character here").hint("remove it")
        }
        ErrorKind::UnexpectedCharacter { character } => {
            Trouble::new(Code::Syntax, place, format!("a value cannot begin with `{character}`"))
                .hint("put the value in quotes")
        }
        ErrorKind::UnknownQuotedScalarEscape => {
            Trouble::new(Code::Syntax, place, "there is no such escape in double quotes")
                .hint(r"use single quotes, or write the backslash twice")
        }
        ErrorKind::InvalidTrailingDoubleQuotedScalar | ErrorKind::InvalidTrailingSingleQuotedScalar => {
            Trouble::new(Code::Syntax, place, "there is text behind the closing quote")
                .hint("put all of the value in quotes")
        }
        ErrorKind::MissingAnchorOrAliasName => lone_sign(text, at),
        ErrorKind::CommentInterceptedScalar | ErrorKind::CommentNotSeparated => {
            Trouble::new(Code::Syntax, place, "a `#` begins a remark, in the middle of a value")
                .hint("put the value in quotes if the `#` is part of it, or a space before the `#`")
        }
        kind => Trouble::new(Code::Syntax, place, format!("this is not YAML: {kind}"))
            .hint("put a value in quotes if one of `* & : # { [ ! % @` is part of it"),
    }
}

/// A `*` or `&` that stands alone, which YAML takes for an alias or an anchor without a name.
fn lone_sign(text: &str, at: usize) -> Finding {
    let is_sign = |at: &usize| text[*at..].starts_with(['*', '&']);
    let sign = [at, at.saturating_sub(1)].into_iter().filter(|at| text.is_char_boundary(*at)).find(is_sign);
    let span = sign.map_or(shown_place(text, at), |sign| Span::new(sign, sign + 1));
    let sign = sign.map_or("*", |sign| &text[sign..=sign]);
    Trouble::new(Code::Anchor, span, format!("a `{sign}` alone means nothing"))
        .hint(format!("put it in quotes if it is meant as itself: `'{sign}'`; an empty list often means all"))
}

/// Where the error is shown: the word at the place, or the end of the last line that holds something.
fn shown_place(text: &str, at: usize) -> Span {
    if text[at..].trim().is_empty() {
        let end = text.trim_end().len();
        return Span::new(end, end);
    }
    let end = text[at..].find([' ', '\n', '\r']).map_or(text.len(), |offset| at + offset);
    Span::new(at, end)
}

/// A tab in the white space that the line of the error begins with, or the line before it.
fn tab_in_indentation(text: &str, at: usize) -> Option<usize> {
    let line_start = |end: usize| text[..end].rfind('\n').map_or(0, |newline| newline + 1);
    let tab = |start: usize| {
        let rest = &text[start..];
        let indent = &rest[..rest.len() - rest.trim_start_matches([' ', '\t']).len()];
        indent.find('\t').map(|offset| start + offset)
    };
    let this = line_start(at);
    tab(this).or_else(|| tab(line_start(text[..this].trim_end().len())))
}

/// A colon where no key can be: a value with a colon in it, or a line that is indented too far.
fn second_colon(text: &str, at: usize) -> Finding {
    let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let before = &text[start..at];
    let colon = Span::new(at, (at + 1).min(text.len()));
    if let Some((key, _)) = before.split_once(": ") {
        let line = text[start..].lines().next().unwrap_or_default();
        let hint = in_quotes(key, &line[key.len() + 2..]);
        let is_last = text[colon.end..].lines().next().unwrap_or_default().trim().is_empty();
        let message = if is_last { "a value that ends with a colon" } else { "a second `: ` in one line" };
        return Trouble::new(Code::Syntax, colon, message).hint(hint);
    }
    if let Some(line) = line_without_colon(text, start) {
        return without_colon(text, line);
    }
    let indent = start + before.len() - before.trim_start().len();
    Trouble::new(Code::Indentation, Span::new(indent, at), "this line does not fit into the indentation")
        .hint("keys of one section begin in the same column; a section has no value of its own")
}

/// How a value with a colon in it is written, as in `store: "memory:"`. Shown only if it is plain words and no secret.
fn in_quotes(key: &str, value: &str) -> String {
    let (key, value) = (key.trim_start_matches([' ', '-', '{']), value.trim());
    let is_plain = |text: &str, also: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "._-".contains(c) || also.contains(c))
    };
    let names_secret = |text: &str| text.split([':', ' ']).any(is_secret_name);
    if is_plain(key, "") && is_plain(value, ": ") && !is_secret_name(key) && !names_secret(value) {
        return format!("put the value in quotes: `{key}: \"{value}\"`");
    }
    "put the value in quotes".to_owned()
}

/// A `${…}` inside of braces needs quotes, because its own braces mean something there.
fn brace_hint(text: &str, at: usize) -> &'static str {
    let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let end = text[at..].find('\n').map_or(text.len(), |offset| at + offset);
    if text[start..end].contains("${") {
        "put `${…}` in quotes when it stands inside of braces"
    } else {
        "close the brace, or put the value in quotes"
    }
}

/// A word that stands where a key should be.
fn without_colon(text: &str, place: Span) -> Finding {
    let word = text.get(place.start..place.end).unwrap_or_default();
    if word.starts_with('-') {
        return Trouble::new(Code::Syntax, place, "a dash without a space").hint("write `- item`");
    }
    let finding = Trouble::new(Code::Syntax, place, "a key without a colon");
    finding.hint("write `key: value`, with a space after the colon")
}

/// The line before this one, if it holds a word and no key.
fn line_without_colon(text: &str, line_start: usize) -> Option<Span> {
    let before = text[..line_start].trim_end();
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let line = before[start..].trim_start();
    let is_key = line.contains(": ")
        || line.ends_with(':')
        || line.starts_with("- ")
        || line.starts_with(['#', '"', '\'']);
    (!line.is_empty() && !is_key).then(|| Span::new(before.len() - line.len(), before.len()))
}

/// The quote that begins the text at whose end the error is: the last one in a line with an odd number of them.
fn opening_quote(text: &str, at: usize) -> Option<usize> {
    let mut end = at;
    loop {
        let start = text[..end].rfind('\n').map_or(0, |newline| newline + 1);
        let line = &text[start..end];
        for quote in ['"', '\''] {
            if line.matches(quote).count() % 2 == 1 {
                return line.rfind(quote).map(|offset| start + offset);
            }
        }
        end = start.checked_sub(1)?;
    }
}
