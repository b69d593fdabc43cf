//! Tables of one line a row that fit the terminal: columns that matter less go first, then the long ones are cut.
//!
//! The layout is our own because rows must stay one line, columns must go by what they are worth, and colours must follow
//! one decision (`--color`, `NO_COLOR`) that a table library would make a second time.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::line::Tone;
use crate::neutral::neutral;

/// What stands between two columns.
const GAP: usize = 2;
/// The least width of a column that can be cut, when all else fails.
const LEAST: usize = 3;

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    name: &'static str,
    right: bool,
    /// How narrow it may become; `None` when it is never cut.
    min: Option<usize>,
    /// How early it may go; 0 for never.
    drop: u8,
}

impl Column {
    /// A column that is never cut and never left out.
    pub const fn new(name: &'static str) -> Self {
        Self { name, right: false, min: None, drop: 0 }
    }

    /// The same column for numbers.
    #[must_use]
    pub const fn right(self) -> Self {
        Self { right: true, ..self }
    }

    /// The same column, which may be cut down to this width.
    #[must_use]
    pub const fn cut(self, min: usize) -> Self {
        Self { min: Some(min), ..self }
    }

    /// The same column, which may be left out; those with the highest number go first.
    #[must_use]
    pub const fn drop(self, order: u8) -> Self {
        Self { drop: order, ..self }
    }
}

/// A cell of a table. Its text is harmless by construction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    /// A cell with this text, made harmless.
    pub fn new(text: impl AsRef<str>) -> Self {
        Self { text: neutral(text.as_ref()), tone: Tone::Plain }
    }

    /// The same cell in a tone.
    #[must_use]
    pub fn tone(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }

    /// A cell with text, or a dash.
    pub fn or_dash(text: Option<impl AsRef<str>>) -> Self {
        text.map_or_else(|| Self::new("-").tone(Tone::Dim), Self::new)
    }
}

/// Rows below columns.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// An empty table.
    pub fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with a cell for each column.
    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "a cell for each column");
        self.rows.push(cells);
    }

    /// The table in lines that are no wider than `width`.
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
            let shown = cut(&cell.text, *width);
            let fill = " ".repeat(width.saturating_sub(shown.width()));
            let is_last = place + 1 == layout.len();
            if place > 0 {
                text.push_str(&" ".repeat(GAP));
            }
            let painted = cell.tone.paint(&shown, color);
            match (self.columns[*index].right, is_last) {
                (true, _) => text.extend([fill.as_str(), painted.as_str()]),
                (false, true) => text.push_str(&painted),
                (false, false) => text.extend([painted.as_str(), fill.as_str()]),
            }
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }

    /// Which columns are shown, and how wide each is.
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
        let mins: Vec<usize> = shown.iter().map(|(_, natural)| LEAST.min(*natural)).collect();
        shrink(&mut shown, &mins, width);
        // On a terminal that narrow, what stands first is worth most.
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

/// Takes from the widest column, again and again, until all fit or none can give.
fn shrink(shown: &mut [(usize, usize)], mins: &[usize], width: usize) {
    let mut excess = total(shown.iter().map(|(_, width)| *width)).saturating_sub(width);
    while excess > 0 {
        let can_give = shown.iter_mut().zip(mins).filter(|((_, width), min)| *width > **min);
        let Some(((_, widest), _)) = can_give.max_by_key(|((_, width), _)| *width) else { return };
        *widest -= 1;
        excess -= 1;
    }
}

/// The beginning of a text that is no wider than `width`, with a sign that there is more.
pub(crate) fn cut(text: &str, width: usize) -> String {
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
        Column::new("OWNER").cut(5).drop(1),
        Column::new("ERROR").cut(10),
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
    fn long_columns_are_cut_first() {
        insta::assert_snapshot!(table().render(44, false), @r"
        ID   LETTERS  OWNER          ERROR
        g_1    1,284  payments-team  timeout after…
        g_2        7  漢字           no\nway
        ");
    }

    #[test]
    fn columns_of_less_worth_go_when_cutting_is_not_enough() {
        insta::assert_snapshot!(table().render(26, false), @r"
        ID   LETTERS  ERROR
        g_1    1,284  timeout aft…
        g_2        7  no\nway
        ");
    }

    #[test]
    fn colours_do_not_change_the_layout() {
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
