//! Renders diagnostics as plain text, with location, line, marker and hint.

use std::fmt::{self, Write as _};

use crate::code::Severity;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::source::{SourceText, Span};

/// The maximum number of characters shown per line.
const WIDTH: usize = 120;
/// The number of characters shown before the marker of a long line.
const LEAD: usize = 60;

impl Diagnostics {
    /// Renders all diagnostics as text without colours.
    pub fn plain(&self) -> String {
        plain(self)
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&summary(self))
    }
}

/// Returns the counts, such as "3 errors and 1 warning in lazaret.yaml".
fn summary(found: &Diagnostics) -> String {
    let counted = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let (errors, warnings) = (found.errors(), found.warnings());
    let counts = match (errors, warnings) {
        (errors, 0) => counted(errors, "error"),
        (0, warnings) => counted(warnings, "warning"),
        (errors, warnings) => format!("{} and {}", counted(errors, "error"), counted(warnings, "warning")),
    };
    let more = if found.omitted() > 0 { format!(", and {} more,", found.omitted()) } else { String::new() };
    match found.list().first() {
        Some(first) => format!("{counts}{more} in {}", first.source().name()),
        None => counts,
    }
}

/// Renders all diagnostics, followed by a line with the counts.
fn plain(found: &Diagnostics) -> String {
    let mut out = String::new();
    for diagnostic in found.list() {
        one(&mut out, diagnostic);
        out.push('\n');
    }
    if found.omitted() > 0 {
        let _ = writeln!(out, "and {} more\n", found.omitted());
    }
    if !found.is_empty() {
        out.push_str(&summary(found));
        out.push('\n');
    }
    out
}

fn one(out: &mut String, diagnostic: &Diagnostic) {
    let word = match diagnostic.severity() {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let source = diagnostic.source();
    let _ = writeln!(out, "{word}[{}]: {}", diagnostic.code(), shown(diagnostic.message()));
    let numbers = [Some(diagnostic.span()), diagnostic.related().map(|(span, _)| span)];
    let widest = numbers.into_iter().flatten().map(|span| source.position(span.start).0).max().unwrap_or(1);
    let margin = widest.to_string().len();
    place(out, source, diagnostic.span(), margin, "", "-->");
    if let Some((span, label)) = diagnostic.related() {
        place(out, source, span, margin, label, ":::");
    }
    let _ = writeln!(out, "{:margin$} = hint: {}", "", shown(diagnostic.hint()));
}

/// Renders the location, the line, and a marker below the line.
fn place(out: &mut String, source: &SourceText, span: Span, margin: usize, label: &str, arrow: &str) {
    let (line, column) = source.position(span.start);
    let _ = writeln!(out, "{:margin$}{arrow} {}:{line}:{column}", "", source.name());
    let (text, indent, length) = cut(source, span, line, column);
    let _ = writeln!(out, "{:margin$} |", "");
    let _ = writeln!(out, "{line:>margin$} | {text}");
    let mark = "^".repeat(length.max(1));
    let line = format!("{:margin$} | {:indent$}{mark} {label}", "", "");
    let _ = writeln!(out, "{}", line.trim_end());
}

/// Returns the shown part of the line, and the indentation and length of the marker in characters.
fn cut(source: &SourceText, span: Span, line: usize, column: usize) -> (String, usize, usize) {
    let whole = source.line(line);
    let (start, _) = source.line_range(line);
    let end_in_line = span.end.min(start + whole.len());
    let marked = source.text().get(span.start..end_in_line).map_or(0, |text| text.trim_end().chars().count());
    let total = whole.chars().count();
    let before = column - 1;
    if total <= WIDTH {
        return (shown(whole), before, marked);
    }
    let skip = before.saturating_sub(LEAD);
    let mut text: String = whole.chars().skip(skip).take(WIDTH).collect();
    if skip + WIDTH < total {
        text.push('…');
    }
    let (text, indent) = if skip > 0 { (format!("…{text}"), before - skip + 1) } else { (text, before) };
    (shown(&text), indent, marked.min(WIDTH.saturating_sub(before - skip)))
}

/// Replaces each control character that a terminal would interpret with one visible character.
fn shown(text: &str) -> String {
    let plain = |c: char| match c {
        '\t' => '→',
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    text.chars().map(plain).collect()
}
