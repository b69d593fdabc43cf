//! The text of a file. Translates offsets to lines and columns.

use miette::{MietteError, MietteSpanContents, NamedSource, SourceCode, SourceSpan, SpanContents};

use crate::secrets::{MASK, Redacted};

/// A range of bytes in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The start offset.
    pub start: usize,
    /// The end offset (exclusive).
    pub end: usize,
}

impl Span {
    /// Creates a range from two offsets.
    pub const fn new(start: usize, end: usize) -> Self {
        Self { start, end }
    }

    /// Returns the length in bytes.
    pub const fn len(self) -> usize {
        self.end.saturating_sub(self.start)
    }

    /// Returns `true` if the range is empty, so that it marks only a position.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// A file as shown in messages: its name, and its text with secrets redacted.
#[derive(Debug)]
pub struct SourceText {
    named: NamedSource<String>,
    /// The start offset of each line.
    lines: Vec<usize>,
    /// The ranges of the original text that are masked, in order.
    masked: Vec<Span>,
}

impl SourceText {
    pub(crate) fn new(name: &str, Redacted { text, masked }: Redacted) -> Self {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { named: NamedSource::new(name, text), lines, masked }
    }

    /// Translates a span of the original text to the shown text.
    pub(crate) fn shown(&self, span: Span) -> Span {
        let start = self.shown_offset(span.start, |masked| masked.start);
        Span::new(start, self.shown_offset(span.end, |masked| masked.end).max(start))
    }

    /// Translates an offset. If it is inside a masked range, `inside` selects the end of the range that
    /// replaces it.
    fn shown_offset(&self, mut offset: usize, inside: impl Fn(&Span) -> usize) -> usize {
        let (mut removed, mut added) = (0, 0);
        for masked in &self.masked {
            if offset <= masked.start {
                break;
            }
            if offset < masked.end {
                offset = inside(masked);
            }
            if offset >= masked.end {
                removed += masked.len();
                added += MASK.len();
            }
        }
        offset + added - removed
    }

    /// Returns the name of the file.
    pub fn name(&self) -> &str {
        self.named.name()
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        self.named.inner()
    }

    /// Returns the line and the column of an offset, both starting at 1. Columns count characters.
    ///
    /// ```
    /// let text = "store: sqlte:x\nconsumers: {}\n";
    /// let report = lazaret_config::check("lazaret.yaml", text.as_bytes(), &lazaret_config::NoEnv).diagnostics;
    /// let first = &report.list()[0];
    /// assert_eq!(first.source().position(first.span().start), (1, 8));
    /// ```
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|start| *start <= offset).max(1);
        let start = self.lines[line - 1];
        let before = self.text().get(start..offset.min(self.text().len())).unwrap_or_default();
        (line, before.chars().count() + 1)
    }

    /// Returns a line by its number, without its line ending.
    pub fn line(&self, number: usize) -> &str {
        let (start, end) = self.line_range(number);
        self.text().get(start..end).unwrap_or_default().trim_end_matches(['\n', '\r'])
    }

    /// Returns the start offsets of a line and of the next line.
    pub(crate) fn line_range(&self, number: usize) -> (usize, usize) {
        let start = number.checked_sub(1).and_then(|index| self.lines.get(index)).copied();
        let end = self.lines.get(number).copied().unwrap_or(self.text().len());
        (start.unwrap_or(end), end)
    }
}

impl SourceCode for SourceText {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        before: usize,
        after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let inner = self.named.inner().read_span(span, before, after)?;
        Ok(Box::new(MietteSpanContents::new_named(
            self.name().to_owned(),
            inner.data(),
            *inner.span(),
            inner.line(),
            inner.column(),
            inner.line_count(),
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::redact;

    #[test]
    fn offsets_are_translated_to_line_and_character() {
        let text = "a: é x\r\nbc\n".to_owned();
        let text = SourceText::new("f", Redacted { text, ..Redacted::default() });
        assert_eq!(text.position(0), (1, 1));
        assert_eq!(text.position("a: é ".len()), (1, 6));
        assert_eq!(text.position("a: é x\r\nb".len()), (2, 2));
        assert_eq!(text.position(text.text().len()), (3, 1));
        assert_eq!((text.line(1), text.line(2), text.line(3), text.line(9)), ("a: é x", "bc", "", ""));
    }

    #[test]
    fn spans_follow_the_shown_text() {
        let original = "{ a: 1, secret: hunter2, b: 2, token: \"x\" }";
        let text = SourceText::new("f", redact(original, &[]));
        assert_eq!(text.text(), "{ a: 1, secret: ***, b: 2, token: \"***\" }");
        let shown = |part: &str| {
            let start = original.find(part).unwrap();
            let Span { start, end } = text.shown(Span::new(start, start + part.len()));
            &text.text()[start..end]
        };
        for (part, expected) in [
            ("a: 1", "a: 1"),
            ("hunter2", "***"),
            ("unter", "***"),
            ("secret: hunter2,", "secret: ***,"),
            ("b: 2", "b: 2"),
            ("\"x\"", "\"***\""),
            ("}", "}"),
        ] {
            assert_eq!(shown(part), expected, "{part}");
        }
        let end = Span::new(original.len(), original.len());
        assert_eq!(text.shown(end), Span::new(text.text().len(), text.text().len()));
    }
}
