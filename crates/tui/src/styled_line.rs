//! Text with tones, truncated or wrapped to a width.

use lazaret_api::text::sanitize;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};
use unicode_width::UnicodeWidthChar;

/// The meaning of a span of text. It selects the style.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// No style.
    #[default]
    Plain,
    /// A heading or a subject.
    Strong,
    /// Secondary text.
    Dim,
    /// Success.
    Good,
    /// A warning.
    Warning,
    /// An error.
    Bad,
    /// A command to type, or an address.
    Hint,
    /// A key to press.
    Key,
}

impl Tone {
    fn style(self) -> Style {
        let style = Style::new();
        match self {
            Self::Plain => style,
            Self::Strong => style.add_modifier(Modifier::BOLD),
            Self::Dim => style.add_modifier(Modifier::DIM),
            Self::Good => style.fg(Color::Green),
            Self::Warning => style.fg(Color::Yellow),
            Self::Bad => style.fg(Color::Red),
            Self::Hint => style.fg(Color::Cyan),
            Self::Key => style.add_modifier(Modifier::REVERSED),
        }
    }
}

/// A styled line of text. Text is sanitized when it is added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StyledLine(Vec<(String, Tone)>);

impl StyledLine {
    /// Creates an empty line.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a line with this text.
    pub fn of(text: impl AsRef<str>, tone: Tone) -> Self {
        Self::new().add(text, tone)
    }

    /// Appends text in a tone.
    #[must_use]
    pub fn add(mut self, text: impl AsRef<str>, tone: Tone) -> Self {
        self.0.push((sanitize(text.as_ref()), tone));
        self
    }

    /// Appends plain text.
    #[must_use]
    pub fn plain(self, text: impl AsRef<str>) -> Self {
        self.add(text, Tone::Plain)
    }

    /// Appends another line.
    #[must_use]
    pub fn join(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    /// Returns the width in columns.
    pub fn width(&self) -> usize {
        self.cells().map(|(c, _)| width_of(c)).sum()
    }

    /// Returns the text without tones.
    pub fn text(&self) -> String {
        self.0.iter().map(|(text, _)| text.as_str()).collect()
    }

    /// Returns the line truncated to a width, with an ellipsis.
    pub fn fit(&self, width: usize) -> Self {
        if self.width() <= width {
            return self.clone();
        }
        let mut fitted: Self = fitting(self.cells(), width.saturating_sub(1)).collect();
        if width > 0 {
            fitted.0.push(("…".to_owned(), Tone::Plain));
        }
        fitted
    }

    /// Returns as much of the end of the line as fits the width.
    pub(crate) fn fit_end(&self, width: usize) -> Self {
        let cells: Vec<(char, Tone)> = self.cells().collect();
        let mut end: Vec<(char, Tone)> = fitting(cells.into_iter().rev(), width).collect();
        end.reverse();
        end.into_iter().collect()
    }

    /// Breaks the line into lines of at most this width, after blanks where possible.
    pub fn wrap(&self, width: usize) -> Vec<Self> {
        let cells: Vec<(char, Tone)> = self.cells().collect();
        let mut rest = &cells[..];
        let mut lines = Vec::new();
        while !rest.is_empty() {
            let end = break_at(rest, width);
            lines.push(rest[..end].iter().copied().collect());
            rest = &rest[end..];
        }
        if lines.is_empty() {
            lines.push(Self::new());
        }
        lines
    }

    fn cells(&self) -> impl Iterator<Item = (char, Tone)> {
        self.0.iter().flat_map(|(text, tone)| text.chars().map(move |c| (c, *tone)))
    }

    /// Converts the line for drawing on a buffer, without tones unless colors are enabled.
    pub(crate) fn to_line(&self, color: bool) -> Line<'_> {
        let style = |tone: Tone| if color { tone.style() } else { Style::new() };
        self.0.iter().map(|(text, tone)| Span::styled(text.as_str(), style(*tone))).collect()
    }
}

/// Collects characters that are already sanitized.
impl FromIterator<(char, Tone)> for StyledLine {
    fn from_iter<I: IntoIterator<Item = (char, Tone)>>(cells: I) -> Self {
        let mut line = Self::new();
        for (c, tone) in cells {
            match line.0.last_mut() {
                Some((text, last)) if *last == tone => text.push(c),
                _ => line.0.push((c.to_string(), tone)),
            }
        }
        line
    }
}

fn width_of(c: char) -> usize {
    c.width().unwrap_or(0)
}

/// Takes characters for as long as they fit the width.
fn fitting(cells: impl Iterator<Item = (char, Tone)>, width: usize) -> impl Iterator<Item = (char, Tone)> {
    let mut used = 0;
    cells.take_while(move |(c, _)| {
        used += width_of(*c);
        used <= width
    })
}

/// Returns the number of characters for the first line: up to and including the last blank that fits and
/// follows a word, or else as many as fit, and at least one.
fn break_at(cells: &[(char, Tone)], width: usize) -> usize {
    let (mut used, mut end) = (0, 0);
    for (c, _) in cells {
        used += width_of(*c);
        if used > width && end > 0 {
            break;
        }
        end += 1;
    }
    if end == cells.len() {
        return end;
    }
    let blank = cells[..end].iter().rposition(|(c, _)| *c == ' ');
    let is_behind_word = |blank: &usize| cells[..*blank].iter().any(|(c, _)| *c != ' ');
    blank.filter(is_behind_word).map_or(end, |blank| blank + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_is_truncated_with_an_ellipsis() {
        let line = StyledLine::of("abc", Tone::Bad).plain("defgh");
        let at = |width| line.fit(width).text();
        assert_eq!([at(8), at(5), at(2), at(1), at(0)], ["abcdefgh", "abcd…", "a…", "…", ""]);
        assert_eq!(
            line.fit(5),
            StyledLine::of("abc", Tone::Bad).plain("d").join(StyledLine(vec![("…".into(), Tone::Plain)]))
        );
        assert_eq!(StyledLine::of("漢字", Tone::Plain).fit(3).text(), "漢…");
        assert_eq!((line.fit_end(3).text(), line.fit_end(9).text()), ("fgh".into(), "abcdefgh".into()));
    }

    #[test]
    fn a_line_is_wrapped_at_blanks_and_long_words_are_broken() {
        let texts = |line: StyledLine, width| -> Vec<String> {
            line.wrap(width).iter().map(|line| line.text().trim_end().to_owned()).collect()
        };
        let line = StyledLine::of("no answer ", Tone::Bad).plain("from the bank");
        assert_eq!(texts(line, 10), ["no answer", "from the", "bank"]);
        assert_eq!(texts(StyledLine::of("  abcdefgh", Tone::Plain), 6), ["  abcd", "efgh"]);
        assert_eq!(texts(StyledLine::new(), 6), [""]);
    }

    #[test]
    fn text_cannot_control_the_terminal() {
        let line = StyledLine::new().plain("a\u{1b}[2J\u{202e}b\n");
        assert_eq!(line.text(), r"a\u{1b}[2J\u{202e}b\n");
    }

    proptest! {
        #[test]
        fn any_text_fits_and_no_character_is_lost(text in any::<String>(), width in 2_usize..100) {
            let line = StyledLine::of(&text, Tone::Bad).plain("end");
            prop_assert!(line.fit(width).width() <= width);
            let wrapped = line.wrap(width);
            prop_assert!(wrapped.iter().all(|line| line.width() <= width));
            prop_assert_eq!(wrapped.iter().map(StyledLine::text).collect::<String>(), line.text());
        }
    }
}
