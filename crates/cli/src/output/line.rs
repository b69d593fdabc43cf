//! A styled line of text. Text is sanitized when it is added.

use lazaret_tui::Tone;
use owo_colors::{OwoColorize, Style};

use crate::sanitize::sanitize;

const fn style(tone: Tone) -> Style {
    let style = Style::new();
    match tone {
        Tone::Plain => style,
        Tone::Strong => style.bold(),
        Tone::Dim => style.dimmed(),
        Tone::Good => style.green(),
        Tone::Warning => style.yellow(),
        Tone::Bad => style.red(),
        Tone::Hint => style.cyan(),
        Tone::Key => style.reversed(),
    }
}

/// Returns the text in a tone, if colors are enabled. The text must be sanitized already.
pub(super) fn paint(tone: Tone, text: &str, color: bool) -> String {
    if !color || tone == Tone::Plain || text.is_empty() {
        return text.to_owned();
    }
    text.style(style(tone)).to_string()
}

/// A styled line of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    spans: Vec<(String, Tone)>,
}

impl Line {
    /// Creates an empty line.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a line of plain text.
    pub fn of(text: impl AsRef<str>) -> Self {
        Self::new().plain(text)
    }

    /// Appends plain text.
    #[must_use]
    pub fn plain(self, text: impl AsRef<str>) -> Self {
        self.add(text, Tone::Plain)
    }

    /// Appends text in a tone.
    #[must_use]
    pub fn add(mut self, text: impl AsRef<str>, tone: Tone) -> Self {
        self.spans.push((sanitize(text.as_ref()), tone));
        self
    }

    /// Returns the pieces of the line, sanitized.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (&str, Tone)> {
        self.spans.iter().map(|(text, tone)| (text.as_str(), *tone))
    }

    /// Renders the line.
    pub fn render(&self, color: bool) -> String {
        self.spans.iter().map(|(text, tone)| paint(*tone, text, color)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_inject_styles() {
        let line = Line::of("a ").add("\u{1b}[31mred\u{1b}[0m", Tone::Bad);
        assert_eq!(line.render(false), r"a \u{1b}[31mred\u{1b}[0m");
        let painted = line.render(true);
        assert_eq!(painted.matches('\u{1b}').count(), 2, "{painted:?}");
        assert!(painted.starts_with("a \u{1b}[31m\\u{1b}[31mred"), "{painted:?}");
    }
}
