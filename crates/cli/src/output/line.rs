//! A line of text with styles. Whatever stands in it is made harmless when it is added, so nothing else can get in.

use owo_colors::{OwoColorize, Style};

use crate::neutral::neutral;

/// What a piece of text wants to say by its looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tone {
    /// Nothing.
    #[default]
    Plain,
    /// A heading, or the thing itself.
    Strong,
    /// Of less weight.
    Dim,
    /// All is well.
    Good,
    /// Look here.
    Warning,
    /// Something is wrong.
    Bad,
    /// Something that can be typed.
    Hint,
}

impl Tone {
    fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Strong => Style::new().bold(),
            Self::Dim => Style::new().dimmed(),
            Self::Good => Style::new().green(),
            Self::Warning => Style::new().yellow(),
            Self::Bad => Style::new().red(),
            Self::Hint => Style::new().cyan(),
        }
    }

    /// The text in this tone, if colours are wanted. The text must be harmless already.
    pub(super) fn paint(self, text: &str, color: bool) -> String {
        if !color || self == Self::Plain || text.is_empty() {
            return text.to_owned();
        }
        text.style(self.style()).to_string()
    }
}

/// A line of text with styles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    spans: Vec<(String, Tone)>,
}

impl Line {
    /// An empty line.
    pub fn new() -> Self {
        Self::default()
    }

    /// A line of plain text.
    pub fn of(text: impl AsRef<str>) -> Self {
        Self::new().plain(text)
    }

    /// The same line with more text.
    #[must_use]
    pub fn plain(self, text: impl AsRef<str>) -> Self {
        self.add(text, Tone::Plain)
    }

    /// The same line with more text in a tone.
    #[must_use]
    pub fn add(mut self, text: impl AsRef<str>, tone: Tone) -> Self {
        self.spans.push((neutral(text.as_ref()), tone));
        self
    }

    /// The line as it is written.
    pub fn render(&self, color: bool) -> String {
        self.spans.iter().map(|(text, tone)| tone.paint(text, color)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn styles_are_ours_and_never_the_messages() {
        let line = Line::of("a ").add("\u{1b}[31mred\u{1b}[0m", Tone::Bad);
        assert_eq!(line.render(false), r"a \u{1b}[31mred\u{1b}[0m");
        let painted = line.render(true);
        assert_eq!(painted.matches('\u{1b}').count(), 2, "{painted:?}");
        assert!(painted.starts_with("a \u{1b}[31m\\u{1b}[31mred"), "{painted:?}");
    }
}
