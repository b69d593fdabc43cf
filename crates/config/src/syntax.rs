//! Translates errors of the YAML parser into findings with hints.

use granit_parser::{ErrorKind, ScanError};

use crate::code::Code;
use crate::diagnostic::{Finding, FindingBuilder};
use crate::secrets::is_secret_name;
use crate::source::Span;

/// Translates a parser error into a finding with a hint.
pub(crate) fn explain(text: &str, error: &ScanError) -> Finding {
    let at = error.marker().byte_offset().unwrap_or(text.len()).min(text.len());
    if let Some(tab) = tab_in_indentation(text, at) {
        let finding = FindingBuilder::new(Code::Tab, Span::new(tab, tab + 1), "tab in the indentation");
        return finding.hint("indent with spaces");
    }
    let place = shown_place(text, at);
    match error.kind() {
        ErrorKind::RecursionLimitExceeded => {
            FindingBuilder::new(Code::TooDeep, place, "the file is nested more than 64 levels deep")
                .hint("look for an extra bracket or dash")
        }
        ErrorKind::TabNotAllowed
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabAtBlockScalarStart
        | ErrorKind::TabInPlainScalar => {
            FindingBuilder::new(Code::Tab, place, "tab where YAML requires spaces").hint("use spaces")
        }
        ErrorKind::InvalidIndentation
        | ErrorKind::ExpectedBlockMappingKey
        | ErrorKind::ExpectedBlockSequenceEntry
        | ErrorKind::BlockSequenceEntryNotAllowed
        | ErrorKind::MappingKeyNotAllowed => {
            FindingBuilder::new(Code::Indentation, place, "inconsistent indentation")
                .hint("start all keys of a section in the same column")
        }
        ErrorKind::MappingValueNotAllowed => second_colon(text, at),
        ErrorKind::SimpleKeyExpected | ErrorKind::InvalidSimpleKey => without_colon(text, place),
        ErrorKind::UnclosedQuotedScalar | ErrorKind::InvalidQuotedScalarIndent => {
            let open = opening_quote(text, at).map_or(place, |quote| Span::new(quote, quote + 1));
            FindingBuilder::new(Code::Syntax, open, "unclosed quote").hint("add the closing quote")
        }
        ErrorKind::UnclosedFlowCollection { open } | ErrorKind::MismatchedFlowCollectionEnd { open, .. } => {
            FindingBuilder::new(Code::Syntax, place, format!("unclosed `{open}`")).hint(brace_hint(text, at))
        }
        ErrorKind::UnexpectedEofFlowMapping
        | ErrorKind::UnexpectedEofImplicitFlowMapping
        | ErrorKind::ExpectedFlowMappingSeparator => {
            FindingBuilder::new(Code::Syntax, place, "expected `,` or `}` here").hint(brace_hint(text, at))
        }
        ErrorKind::UnexpectedEofFlowSequence | ErrorKind::ExpectedFlowSequenceSeparator => {
            FindingBuilder::new(Code::Syntax, place, "expected `,` or `]` here")
                .hint("close the list, or quote the value")
        }
        ErrorKind::UnexpectedCharacter { character } if character.is_control() => {
            FindingBuilder::new(Code::Syntax, place, "control character in the file").hint("remove it")
        }
        ErrorKind::UnexpectedCharacter { character } => {
            FindingBuilder::new(Code::Syntax, place, format!("a value cannot start with `{character}`"))
                .hint("quote the value")
        }
        ErrorKind::UnknownQuotedScalarEscape => {
            FindingBuilder::new(Code::Syntax, place, "unknown escape sequence in double quotes")
                .hint(r"use single quotes, or write the backslash twice")
        }
        ErrorKind::InvalidTrailingDoubleQuotedScalar | ErrorKind::InvalidTrailingSingleQuotedScalar => {
            FindingBuilder::new(Code::Syntax, place, "text after the closing quote")
                .hint("quote the whole value")
        }
        ErrorKind::MissingAnchorOrAliasName => lone_sign(text, at),
        ErrorKind::CommentInterceptedScalar | ErrorKind::CommentNotSeparated => {
            FindingBuilder::new(Code::Syntax, place, "a `#` starts a comment in the middle of a value")
                .hint("quote the value if the `#` is part of it, or put a space before the `#`")
        }
        kind => FindingBuilder::new(Code::Syntax, place, format!("YAML syntax error: {kind}"))
            .hint("quote a value that contains one of `* & : # { [ ! % @`"),
    }
}

/// Reports a lone `*` or `&`, which YAML parses as an alias or an anchor without a name.
fn lone_sign(text: &str, at: usize) -> Finding {
    let is_sign = |at: &usize| text[*at..].starts_with(['*', '&']);
    let sign = [at, at.saturating_sub(1)].into_iter().filter(|at| text.is_char_boundary(*at)).find(is_sign);
    let span = sign.map_or(shown_place(text, at), |sign| Span::new(sign, sign + 1));
    let sign = sign.map_or("*", |sign| &text[sign..=sign]);
    FindingBuilder::new(Code::Anchor, span, format!("a lone `{sign}` is an alias or anchor without a name"))
        .hint(format!("quote a literal `{sign}`: `'{sign}'`; an empty list often means all"))
}

/// Returns the span to show: the word at the offset, or the end of the last line with content.
fn shown_place(text: &str, at: usize) -> Span {
    if text[at..].trim().is_empty() {
        let end = text.trim_end().len();
        return Span::new(end, end);
    }
    let end = text[at..].find([' ', '\n', '\r']).map_or(text.len(), |offset| at + offset);
    Span::new(at, end)
}

/// Finds a tab in the indentation of the line of the error, or of the line before it.
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

/// Reports a colon where no key is allowed: a value that contains a colon, or a line that is indented
/// too far.
fn second_colon(text: &str, at: usize) -> Finding {
    let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let before = &text[start..at];
    let colon = Span::new(at, (at + 1).min(text.len()));
    if let Some((key, _)) = before.split_once(": ") {
        let line = text[start..].lines().next().unwrap_or_default();
        let hint = in_quotes(key, &line[key.len() + 2..]);
        let is_last = text[colon.end..].lines().next().unwrap_or_default().trim().is_empty();
        let message = if is_last { "value ends with a colon" } else { "second `: ` in one line" };
        return FindingBuilder::new(Code::Syntax, colon, message).hint(hint);
    }
    if let Some(line) = line_without_colon(text, start) {
        return without_colon(text, line);
    }
    let indent = start + before.len() - before.trim_start().len();
    FindingBuilder::new(Code::Indentation, Span::new(indent, at), "inconsistent indentation")
        .hint("start all keys of a section in the same column; a section cannot have a value")
}

/// Shows how to write a value that contains a colon, such as `store: "memory:"`. Omits values that may
/// be secret.
fn in_quotes(key: &str, value: &str) -> String {
    let (key, value) = (key.trim_start_matches([' ', '-', '{']), value.trim());
    let is_plain = |text: &str, also: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "._-".contains(c) || also.contains(c))
    };
    let names_secret = |text: &str| text.split([':', ' ']).any(is_secret_name);
    if is_plain(key, "") && is_plain(value, ": ") && !is_secret_name(key) && !names_secret(value) {
        return format!("quote the value: `{key}: \"{value}\"`");
    }
    "quote the value".to_owned()
}

/// Returns the hint for an unclosed brace. A `${…}` inside braces needs quotes, because YAML parses its
/// braces.
fn brace_hint(text: &str, at: usize) -> &'static str {
    let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let end = text[at..].find('\n').map_or(text.len(), |offset| at + offset);
    if text[start..end].contains("${") {
        "quote `${…}` inside of braces"
    } else {
        "close the brace, or quote the value"
    }
}

/// Reports a word where a key is expected.
fn without_colon(text: &str, place: Span) -> Finding {
    let word = text.get(place.start..place.end).unwrap_or_default();
    if word.starts_with('-') {
        return FindingBuilder::new(Code::Syntax, place, "dash without a space").hint("write `- item`");
    }
    let finding = FindingBuilder::new(Code::Syntax, place, "key without a colon");
    finding.hint("write `key: value`, with a space after the colon")
}

/// Returns the previous line if it contains a word but no key.
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

/// Finds the opening quote of the unclosed string, which is the last quote in a line with an odd number
/// of them.
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
