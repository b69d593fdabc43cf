//! A dialog over the screen: text to read, rows to choose from, and a line to type.

use ratatui_core::layout::Rect;

use crate::screen::KeyHint;
use crate::styled_line::{StyledLine, Tone};

/// The maximum width of a dialog, including its border. Longer lines are hard to read.
const MAX_WIDTH: u16 = 110;
/// The width of the border and the blank on each side, in columns.
const SIDE: u16 = 2;

/// A dialog drawn over the screen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dialog {
    /// The title.
    pub title: String,
    /// The text, wrapped to the width of the dialog.
    pub lines: Vec<StyledLine>,
    /// Rows to choose from, below the text. Each row takes one line.
    pub choices: Vec<StyledLine>,
    /// The index of the chosen row.
    pub selected: usize,
    /// The index of the first visible line, in a dialog without rows.
    pub scroll: usize,
    /// The line for typed input.
    pub input: Option<Input>,
    /// The keys to press.
    pub keys: Vec<KeyHint>,
}

/// A line for typed input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Input {
    /// The prompt.
    pub label: String,
    /// The typed text.
    pub text: String,
}

/// The lines of a dialog as they are drawn.
pub(crate) struct Body {
    /// The lines that scroll.
    pub(crate) lines: Vec<StyledLine>,
    /// The index of the chosen row's line.
    pub(crate) chosen: Option<usize>,
    /// The fixed lines at the bottom.
    pub(crate) bottom: Vec<StyledLine>,
}

impl Dialog {
    /// Returns the largest useful [`scroll`](Self::scroll) on a terminal of this size.
    pub fn max_scroll(&self, (width, height): (u16, u16)) -> usize {
        let inside = inner(self.area(Rect::new(0, 0, width, height)));
        let body = self.body(inside.width);
        let visible = usize::from(inside.height).saturating_sub(body.bottom.len());
        body.lines.len().saturating_sub(visible)
    }

    /// Returns the area of the dialog: centered, and only as large as its content needs.
    pub(crate) fn area(&self, screen: Rect) -> Rect {
        let width = screen.width.min(MAX_WIDTH);
        let body = self.body(width.saturating_sub(2 * SIDE));
        let wanted = u16::try_from(body.lines.len() + body.bottom.len() + 2).unwrap_or(u16::MAX);
        let height = screen.height.min(wanted);
        let (x, y) = ((screen.width - width) / 2, (screen.height - height) / 2);
        Rect { x: screen.x + x, y: screen.y + y, width, height }
    }

    /// Returns the lines for a dialog of this width.
    pub(crate) fn body(&self, width: u16) -> Body {
        let width = usize::from(width).max(1);
        let mut lines: Vec<StyledLine> = self.lines.iter().flat_map(|line| line.wrap(width)).collect();
        let first = lines.len();
        for (index, row) in self.choices.iter().enumerate() {
            let mark = if index == self.selected { "> " } else { "  " };
            lines.push(StyledLine::of(mark, Tone::Hint).join(row.clone()).fit(width));
        }
        let chosen = (!self.choices.is_empty()).then(|| first + self.selected.min(self.choices.len() - 1));
        let mut bottom = vec![StyledLine::new()];
        if let Some(input) = &self.input {
            bottom.push(input.line(width));
        }
        bottom.push(key_line(&self.keys).fit(width));
        Body { lines, chosen, bottom }
    }
}

impl Input {
    /// Returns the prompt and the typed text. If the text is too long, its end is visible.
    fn line(&self, width: usize) -> StyledLine {
        let label = StyledLine::of(format!("{}: ", self.label), Tone::Strong);
        let room = width.saturating_sub(label.width());
        label.join(StyledLine::new().plain(&self.text).plain("▏").fit_end(room)).fit(width)
    }
}

/// Returns the area inside the border.
pub(crate) fn inner(area: Rect) -> Rect {
    Rect {
        x: area.x + SIDE.min(area.width),
        y: area.y + 1.min(area.height),
        width: area.width.saturating_sub(2 * SIDE),
        height: area.height.saturating_sub(2),
    }
}

/// Returns the line that lists the keys.
pub(crate) fn key_line(keys: &[KeyHint]) -> StyledLine {
    keys.iter().fold(StyledLine::new(), |line, hint| {
        let gap = if line == StyledLine::new() { "" } else { "  " };
        let tone = if hint.is_active { Tone::Key } else { Tone::Dim };
        line.plain(gap).add(format!(" {} ", hint.key), tone).plain(format!(" {}", hint.label))
    })
}
