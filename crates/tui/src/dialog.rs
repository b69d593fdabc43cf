//! A dialog over the screen: text to read, rows to choose from, and a line to type.

use ratatui_core::layout::Rect;

use crate::screen::KeyHint;
use crate::styled_line::{StyledLine, Tone};

/// The largest width of a dialog, borders included: longer lines are hard to read.
const MAX_WIDTH: u16 = 110;
/// The columns of a border and a blank, on each side.
const SIDE: u16 = 2;

/// A dialog.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dialog {
    /// The title.
    pub title: String,
    /// Text, wrapped to the width of the dialog.
    pub lines: Vec<StyledLine>,
    /// Rows to choose from, below the text. Each has one line.
    pub choices: Vec<StyledLine>,
    /// The chosen row.
    pub selected: usize,
    /// The first visible line of a dialog without rows.
    pub scroll: usize,
    /// A line to type.
    pub input: Option<Input>,
    /// The keys to press.
    pub keys: Vec<KeyHint>,
}

/// A line to type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Input {
    /// What is asked for.
    pub label: String,
    /// What was typed.
    pub text: String,
}

/// The lines of a dialog, as they are drawn.
pub(crate) struct Body {
    /// The lines that may be scrolled.
    pub(crate) lines: Vec<StyledLine>,
    /// The line of the chosen row.
    pub(crate) chosen: Option<usize>,
    /// The lines at the bottom.
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

    /// Returns where the dialog is drawn: centered, and only as large as it must be.
    pub(crate) fn area(&self, screen: Rect) -> Rect {
        let width = screen.width.min(MAX_WIDTH);
        let body = self.body(width.saturating_sub(2 * SIDE));
        let wanted = u16::try_from(body.lines.len() + body.bottom.len() + 2).unwrap_or(u16::MAX);
        let height = screen.height.min(wanted);
        let (x, y) = ((screen.width - width) / 2, (screen.height - height) / 2);
        Rect { x: screen.x + x, y: screen.y + y, width, height }
    }

    /// Returns the lines for this width.
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
    /// Returns the line: the end of the text is visible.
    fn line(&self, width: usize) -> StyledLine {
        let label = StyledLine::of(format!("{}: ", self.label), Tone::Strong);
        let room = width.saturating_sub(label.width());
        label.join(StyledLine::new().plain(&self.text).plain("▏").fit_end(room)).fit(width)
    }
}

/// Returns the area inside of the border.
pub(crate) fn inner(area: Rect) -> Rect {
    Rect {
        x: area.x + SIDE.min(area.width),
        y: area.y + 1.min(area.height),
        width: area.width.saturating_sub(2 * SIDE),
        height: area.height.saturating_sub(2),
    }
}

/// Returns the line of keys.
pub(crate) fn key_line(keys: &[KeyHint]) -> StyledLine {
    keys.iter().fold(StyledLine::new(), |line, hint| {
        let gap = if line == StyledLine::new() { "" } else { "  " };
        let tone = if hint.is_active { Tone::Key } else { Tone::Dim };
        line.plain(gap).add(format!(" {} ", hint.key), tone).plain(format!(" {}", hint.label))
    })
}
