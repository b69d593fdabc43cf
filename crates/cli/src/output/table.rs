//! Renders tables that fit the terminal: less important columns are dropped first, then long ones are truncated.
//!
//! No table library is used, because rows must stay on one line, columns are dropped by priority, and colors follow one decision
//! (`--color`, `NO_COLOR`) that a library would make a second time.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::Tone;
use super::line::paint;
use crate::sanitize::sanitize;

/// The space between two columns.
const GAP: usize = 2;
/// The smallest width of any column on a very narrow terminal.
const MIN_COLUMN: usize = 3;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    name: &'static str,
    right: bool,
    /// The smallest width; `None` when the column is never truncated.
    min: Option<usize>,
    /// The drop priority, the highest is dropped first; 0 for never.
    drop: u8,
}

impl Column {
    /// Creates a column that is never truncated and never dropped.
    pub const fn new(name: &'static str) -> Self {
        Self { name, right: false, min: None, drop: 0 }
    }

    /// Aligns the column to the right, for numbers.
    #[must_use]
    pub const fn right(self) -> Self {
        Self { right: true, ..self }
    }

    /// Allows the column to be truncated to this width.
    #[must_use]
    pub const fn min_width(self, min: usize) -> Self {
        Self { min: Some(min), ..self }
    }

    /// Allows the column to be dropped; the highest priority is dropped first.
    #[must_use]
    pub const fn drop_priority(self, priority: u8) -> Self {
        Self { drop: priority, ..self }
    }
}

/// A cell of a table. Its text is sanitized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// Creates a cell with this text, sanitized.
    pub fn new(text: impl AsRef<str>) -> Self {
        Self { text: sanitize(text.as_ref()), tone: Tone::Plain }
    }

    /// Sets the tone.
    #[must_use]
    pub fn tone(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }

    /// Creates a cell with this text, or a dash.
    pub fn or_dash(text: Option<impl AsRef<str>>) -> Self {
        text.map_or_else(|| Self::new("-").tone(Tone::Dim), Self::new)
    }
}

/// A table.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Creates an empty table.
    pub fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with one cell per column.
    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "one cell per column");
        self.rows.push(cells);
    }

    /// Renders the table in lines that are no wider than `width`.
    pub fn render(&self, width: usize, color: bool) -> String {
        let layout = self.layout(width);
        let mut text = String::new();
        let header: Vec<Cell> =
            self.columns.iter().map(|column| Cell::new(column.name).tone(Tone::Strong)).collect();
        for cells in std::iter::once(&header).chain(&self.rows) {
            self.render_row(cells, &layout, color, &mut text);
        }
        text
    }

    fn render_row(&self, cells: &[Cell], layout: &[(usize, usize)], color: bool, text: &mut String) {
        for (place, (index, width)) in layout.iter().enumerate() {
            let cell = &cells[*index];
            let shown = truncate(&cell.text, *width);
            let fill = " ".repeat(width.saturating_sub(shown.width()));
            let is_last = place + 1 == layout.len();
            if place > 0 {
                text.push_str(&" ".repeat(GAP));
            }
            let painted = paint(cell.tone, &shown, color);
            match (self.columns[*index].right, is_last) {
                (true, _) => text.extend([fill.as_str(), painted.as_str()]),
                (false, true) => text.push_str(&painted),
                (false, false) => text.extend([painted.as_str(), fill.as_str()]),
            }
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }

    /// Returns the columns that are shown, with their widths.
    fn layout(&self, width: usize) -> Vec<(usize, usize)> {
        let natural = |index: usize| {
            let cells = self.rows.iter().map(|row| row[index].text.width());
            cells.chain([self.columns[index].name.width()]).max().unwrap_or(0)
        };
        let mut shown: Vec<(usize, usize)> =
            (0..self.columns.len()).map(|index| (index, natural(index))).collect();
        let least =
            |(index, width): &(usize, usize)| self.columns[*index].min.map_or(*width, |min| min.min(*width));
        while total(shown.iter().map(least)) > width && shown.len() > 1 {
            let candidates = shown.iter().enumerate().filter(|(_, (index, _))| self.columns[*index].drop > 0);
            let Some((place, _)) = candidates.max_by_key(|(_, (index, _))| self.columns[*index].drop) else {
                break;
            };
            shown.remove(place);
        }
        let mins: Vec<usize> = shown.iter().map(least).collect();
        shrink(&mut shown, &mins, width);
        let mins: Vec<usize> = shown.iter().map(|(_, natural)| MIN_COLUMN.min(*natural)).collect();
        shrink(&mut shown, &mins, width);
        // Too narrow even for minimal columns: keep the first ones.
        while total(shown.iter().map(|(_, width)| *width)) > width && shown.len() > 1 {
            shown.pop();
        }
        if let [(_, only)] = shown.as_mut_slice() {
            *only = width.min(*only);
        }
        shown
    }
}

fn total(widths: impl ExactSizeIterator<Item = usize>) -> usize {
    let gaps = widths.len().saturating_sub(1) * GAP;
    widths.sum::<usize>() + gaps
}

/// Shrinks the widest column step by step, until all fit or none can shrink.
fn shrink(shown: &mut [(usize, usize)], mins: &[usize], width: usize) {
    let mut excess = total(shown.iter().map(|(_, width)| *width)).saturating_sub(width);
    while excess > 0 {
        let shrinkable = shown.iter_mut().zip(mins).filter(|((_, width), min)| *width > **min);
        let Some(((_, widest), _)) = shrinkable.max_by_key(|((_, width), _)| *width) else { return };
        *widest -= 1;
        excess -= 1;
    }
}

/// Truncates a text to this width, with an ellipsis.
pub(crate) fn truncate(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut shown = String::new();
    let mut used = 0;
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used + 1 > width {
            break;
        }
        shown.push(c);
    }
    shown.truncate(shown.trim_end_matches(' ').len());
    if width > 0 {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COLUMNS: [Column; 4] = [
        Column::new("ID"),
        Column::new("LETTERS").right(),
        Column::new("OWNER").min_width(5).drop_priority(1),
        Column::new("ERROR").min_width(10),
    ];

    fn table() -> Table {
        let mut table = Table::new(&COLUMNS);
        let row = |id: &str, letters: &str, owner: &str, error: &str| {
            vec![Cell::new(id), Cell::new(letters), Cell::new(owner), Cell::new(error)]
        };
        table.row(row("g_1", "1,284", "payments-team", "timeout after 30 s calling the bank"));
        table.row(row("g_2", "7", "漢字", "no\nway"));
        table
    }

    #[test]
    fn a_wide_terminal_shows_everything() {
        insta::assert_snapshot!(table().render(100, false), @r"
        ID   LETTERS  OWNER          ERROR
        g_1    1,284  payments-team  timeout after 30 s calling the bank
        g_2        7  漢字           no\nway
        ");
    }

    #[test]
    fn long_columns_are_truncated_first() {
        insta::assert_snapshot!(table().render(44, false), @r"
        ID   LETTERS  OWNER          ERROR
        g_1    1,284  payments-team  timeout after…
        g_2        7  漢字           no\nway
        ");
    }

    #[test]
    fn less_important_columns_are_dropped_when_truncation_is_not_enough() {
        insta::assert_snapshot!(table().render(26, false), @r"
        ID   LETTERS  ERROR
        g_1    1,284  timeout aft…
        g_2        7  no\nway
        ");
    }

    #[test]
    fn colors_do_not_change_the_layout() {
        let strip = |text: &str| {
            let mut plain = String::new();
            let mut rest = text;
            while let Some((before, after)) = rest.split_once('\u{1b}') {
                plain.push_str(before);
                rest = after.split_once('m').unwrap().1;
            }
            plain + rest
        };
        assert_eq!(strip(&table().render(44, true)), table().render(44, false));
        assert!(table().render(44, true).contains('\u{1b}'));
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_terminal(
            cells in prop::collection::vec(prop::collection::vec(any::<String>(), 4), 0..5), width in 1_usize..200,
        ) {
            let mut table = Table::new(&COLUMNS);
            for row in cells {
                table.row(row.iter().map(Cell::new).collect());
            }
            let text = table.render(width, false);
            prop_assert_eq!(text.lines().count(), table.rows.len() + 1);
            for line in text.lines() {
                prop_assert!(line.width() <= width, "{} of {width}: {line:?}", line.width());
            }
        }
    }
}
