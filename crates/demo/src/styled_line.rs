//! Styled lines that fit a width. Text is sanitized, because users may send orders of their own.

use unicode_width::UnicodeWidthChar;

/// The meaning of a span of text, which selects its style.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Strong,
    Dim,
    Good,
    Warning,
    Bad,
    Hint,
    /// A key to press.
    Key,
}

impl Tone {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Strong => "1",
            Self::Dim => "2",
            Self::Good => "32",
            Self::Warning => "33",
            Self::Bad => "31",
            Self::Hint => "36",
            Self::Key => "7",
        }
    }
}

/// A styled line of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line(Vec<(String, Tone)>);

impl Line {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn of(text: impl AsRef<str>, tone: Tone) -> Self {
        Self::new().add(text, tone)
    }

    #[must_use]
    pub(crate) fn add(mut self, text: impl AsRef<str>, tone: Tone) -> Self {
        // Characters without width are control characters, direction marks or invisible.
        let sanitize = |c: char| if c.width().unwrap_or(0) == 0 { '·' } else { c };
        let sanitized = text.as_ref().chars().map(sanitize).collect();
        self.0.push((sanitized, tone));
        self
    }

    #[must_use]
    pub(crate) fn plain(self, text: impl AsRef<str>) -> Self {
        self.add(text, Tone::Plain)
    }

    /// Returns the width.
    pub(crate) fn width(&self) -> usize {
        self.0.iter().flat_map(|(text, _)| text.chars()).map(|c| c.width().unwrap_or(0)).sum()
    }

    /// Renders the line, truncated to a width.
    pub(crate) fn render(&self, width: usize, color: bool) -> String {
        let mut left = width;
        let is_truncated = self.width() > width;
        if is_truncated {
            left = left.saturating_sub(1);
        }
        let mut rendered = String::new();
        'line: for (text, tone) in &self.0 {
            let paint = color && !tone.code().is_empty();
            if paint {
                rendered.push_str(&format!("\x1b[{}m", tone.code()));
            }
            for c in text.chars() {
                let wide = c.width().unwrap_or(0);
                if wide > left {
                    if paint {
                        rendered.push_str("\x1b[0m");
                    }
                    break 'line;
                }
                left -= wide;
                rendered.push(c);
            }
            if paint {
                rendered.push_str("\x1b[0m");
            }
        }
        if is_truncated && width > 0 {
            rendered.push('…');
        }
        rendered
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_is_truncated_with_an_ellipsis_and_colors_have_no_width() {
        let line = Line::of("abc", Tone::Bad).plain("defgh");
        assert_eq!(line.render(8, false), "abcdefgh");
        assert_eq!(line.render(5, false), "abcd…");
        assert_eq!(line.render(5, true), "\x1b[31mabc\x1b[0md…");
        assert_eq!(line.render(2, true), "\x1b[31ma\x1b[0m…");
        assert_eq!(line.render(0, true), "\x1b[31m\x1b[0m");
    }

    #[test]
    fn invisible_characters_are_replaced() {
        let line = Line::new().plain("a\u{1b}[2J\u{202e}b\u{200b}c\n");
        assert_eq!(line.render(80, false), "a·[2J·b·c·");
    }

    proptest! {
        #[test]
        fn any_text_fits_and_has_no_control_characters(text in any::<String>(), width in 1_usize..100) {
            let rendered = Line::new().plain(&text).plain("end").render(width, false);
            let wide: usize = rendered.chars().map(|c| c.width().unwrap_or(0)).sum();
            prop_assert!(wide <= width);
            prop_assert!(rendered.chars().all(|c| c.width().is_some_and(|width| width > 0)));
        }
    }
}
