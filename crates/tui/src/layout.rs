//! Selects the lines of a screen that fit a terminal.

use crate::dialog::key_line;
use crate::rows::Row;
use crate::screen::{Screen, Section};
use crate::styled_line::{StyledLine, Tone};

/// The maximum gap between the title and the address.
const MAX_GAP: usize = 40;
/// The maximum number of groups while other sections need the rows.
const MAX_GROUPS: usize = 6;

/// A line of the screen.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ScreenLine {
    pub(crate) line: StyledLine,
    pub(crate) is_selected: bool,
}

impl From<StyledLine> for ScreenLine {
    fn from(line: StyledLine) -> Self {
        Self { line, is_selected: false }
    }
}

/// The number of rows of each section, in their order on the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rows {
    consumers: usize,
    blocked: usize,
    groups: usize,
    operations: usize,
    log: usize,
}

impl Rows {
    fn sum(self) -> usize {
        self.consumers + self.blocked + self.groups + self.operations + self.log
    }
}

/// Returns the lines for a terminal of this size. No line is wider than the terminal.
pub(crate) fn lay_out(screen: &Screen, (width, height): (usize, usize)) -> Vec<ScreenLine> {
    let mut top = title(screen, width);
    top.extend(screen.summary.iter().cloned());
    top.push(StyledLine::new());
    let mut bottom: Vec<StyledLine> = screen.footer.clone();
    bottom.push(key_line(&screen.keys));
    let room = height.saturating_sub(top.len() + bottom.len() + headings(screen));
    let rows = allot(room, wanted(screen));
    let mut lines: Vec<ScreenLine> = top.into_iter().map(ScreenLine::from).collect();
    if let Some(consumers) = &screen.consumers {
        lines.extend(section(consumers, rows.consumers, width));
    }
    lines.extend(section(&screen.blocked, rows.blocked, width));
    lines.extend(section(&screen.groups, rows.groups, width));
    if !screen.operations.rows.is_empty() {
        lines.extend(section(&screen.operations, rows.operations, width));
    }
    // The log shows its latest entries, and does not count the hidden ones.
    let log = &screen.log;
    lines.push(heading(&log.title, &log.note).into());
    let first = log.rows.len().saturating_sub(rows.log);
    lines.extend(Row::lines(&log.rows[first..], width).into_iter().map(|line| mark(line, false)));
    lines.extend(std::iter::repeat_n(ScreenLine::default(), room.saturating_sub(rows.sum())));
    lines.extend(bottom.into_iter().map(ScreenLine::from));
    // A small terminal keeps the top and the keys.
    if lines.len() > height && height > 0 {
        let keys = lines.pop();
        lines.truncate(height - 1);
        lines.extend(keys);
    }
    lines.truncate(height);
    for line in &mut lines {
        line.line = line.line.fit(width);
    }
    lines
}

/// Returns the height that shows every row.
pub(crate) fn full_height(screen: &Screen, width: usize) -> usize {
    let fixed = title(screen, width).len() + screen.summary.len() + 1 + screen.footer.len() + 1;
    fixed + headings(screen) + wanted(screen).sum()
}

fn title(screen: &Screen, width: usize) -> Vec<StyledLine> {
    let used = screen.title.width() + screen.address.width();
    if screen.address.width() == 0 {
        return vec![screen.title.clone()];
    }
    if used + 2 > width {
        return vec![screen.title.clone(), screen.address.clone()];
    }
    let gap = (width - used).clamp(2, MAX_GAP);
    vec![screen.title.clone().plain(" ".repeat(gap)).join(screen.address.clone())]
}

/// Returns the number of section headings.
fn headings(screen: &Screen) -> usize {
    3 + usize::from(screen.consumers.is_some()) + usize::from(!screen.operations.rows.is_empty())
}

fn wanted(screen: &Screen) -> Rows {
    fn of<R>(section: &Section<R>) -> usize {
        let is_partial = section.total > section.rows.len() as u64;
        section.rows.len() + usize::from(is_partial)
    }
    Rows {
        consumers: screen.consumers.as_ref().map_or(0, of),
        blocked: of(&screen.blocked),
        groups: of(&screen.groups),
        operations: of(&screen.operations),
        log: screen.log.rows.len(),
    }
}

/// Shares the rows among the sections. Consumers, operations and groups get rows first, because they are
/// few and most important. The blocked keys then get up to half of the remaining rows, and the log as
/// many of the others as it needs. Rows that are still free go to the sections that need more.
fn allot(room: usize, wanted: Rows) -> Rows {
    let mut left = room;
    let mut take = |wanted: usize, most: usize| {
        let taken = wanted.min(most).min(left);
        left -= taken;
        taken
    };
    let consumers = take(wanted.consumers, (room / 4).max(1));
    let operations = take(wanted.operations, (room / 5).max(1));
    let groups = take(wanted.groups, (room / 3).min(MAX_GROUPS));
    let half = room.saturating_sub(consumers + operations + groups) / 2;
    let blocked = take(wanted.blocked, half);
    let log = take(wanted.log, usize::MAX);
    let mut rows = Rows { consumers, blocked, groups, operations, log };
    for (rows, wanted) in [
        (&mut rows.blocked, wanted.blocked),
        (&mut rows.groups, wanted.groups),
        (&mut rows.consumers, wanted.consumers),
        (&mut rows.operations, wanted.operations),
    ] {
        *rows += take(wanted - *rows, usize::MAX);
    }
    rows
}

fn heading(title: &str, note: &str) -> StyledLine {
    StyledLine::of(title, Tone::Strong).add(format!("  {note}"), Tone::Dim)
}

/// Returns the heading and as many rows as fit, including the selected one. If some do not fit, the last
/// line counts them.
fn section<R: Row>(section: &Section<R>, room: usize, width: usize) -> Vec<ScreenLine> {
    let mut lines = vec![heading(&section.title, &section.note).into()];
    let all = usize::try_from(section.total).unwrap_or(usize::MAX).max(section.rows.len());
    let selected = section.selected.filter(|selected| *selected < section.rows.len());
    let shown = match (all <= room, selected) {
        (true, _) => section.rows.len(),
        // A selected row is visible, even if it is the only one.
        (false, Some(_)) => section.rows.len().min(room.saturating_sub(1).max(1)).min(room),
        (false, None) => section.rows.len().min(room.saturating_sub(1)),
    };
    let last = selected.map_or(0, |selected| (selected + 1).saturating_sub(shown));
    let first = last.min(section.rows.len() - shown);
    let rows = R::lines(&section.rows, width).into_iter().enumerate().skip(first).take(shown);
    lines.extend(rows.map(|(index, line)| mark(line, selected == Some(index))));
    if shown < all && shown < room {
        lines.push(StyledLine::of(format!("  … {} more", all - shown), Tone::Dim).into());
    }
    lines
}

/// Indents a row, and puts a marker before the selected one, because colors may be disabled.
fn mark(line: StyledLine, is_selected: bool) -> ScreenLine {
    let mark = if is_selected { "> " } else { "  " };
    ScreenLine { line: StyledLine::new().plain(mark).join(line), is_selected }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::{BlockedKey, Consumer, Group, HeadState, KeyHint, LogEntry, Operation};

    fn key(index: usize) -> BlockedKey {
        BlockedKey {
            name: format!("key-{index}"),
            head: HeadState::Held("dead".into()),
            lane: (0..12).map(|letter| format!("letter-{letter}")).collect(),
            letters: 20,
            is_paused: false,
        }
    }

    fn screen(keys: usize, consumers: usize, log: usize) -> Screen {
        let consumer = |index: usize| Consumer { name: format!("consumer-{index}"), ..Consumer::default() };
        let group = |_| Group { reason: "TIMEOUT".into(), message: "x".repeat(300), ..Group::default() };
        Screen {
            title: StyledLine::of("Lazaret", Tone::Strong),
            address: StyledLine::of("http://127.0.0.1:7117", Tone::Hint),
            consumers: (consumers > 0)
                .then(|| Section::new("CONSUMERS", (0..consumers).map(consumer).collect())),
            blocked: Section::new("KEYS", (0..keys).map(key).collect()),
            groups: Section::new("GROUPS", (0..9).map(group).collect()),
            operations: Section::new("OPERATIONS", vec![Operation::default(); keys.min(2)]),
            log: Section::new("LOG", vec![LogEntry { text: "entry".into(), ..LogEntry::default() }; log]),
            keys: vec![KeyHint::new("q", "quit")],
            ..Screen::default()
        }
    }

    fn text(screen: &Screen, width: usize, height: usize) -> String {
        let lines: Vec<String> =
            lay_out(screen, (width, height)).iter().map(|line| line.line.text()).collect();
        lines.join("\n")
    }

    #[test]
    fn every_size_of_terminal_is_filled_and_none_is_overrun() {
        for (keys, consumers, log) in [(0, 0, 0), (3, 1, 0), (30, 12, 64)] {
            let mut screen = screen(keys, consumers, log);
            screen.blocked.selected = keys.checked_sub(1);
            for width in [1, 20, 40, 80, 132, 250] {
                for height in [1, 2, 5, 12, 24, 50, 100] {
                    let lines = lay_out(&screen, (width, height));
                    assert_eq!(lines.len(), height, "{keys} keys at {width}x{height}");
                    assert!(lines.iter().all(|line| line.line.width() <= width), "{width}x{height}");
                    let keys = lines.last().map(|line| line.line.text()).unwrap_or_default();
                    assert!(width < 20 || keys.contains(" q  quit"), "{width}x{height}: {keys}");
                }
            }
        }
    }

    #[test]
    fn rows_that_do_not_fit_are_counted() {
        let all = text(&screen(3, 0, 64), 80, 40);
        assert!(all.matches(" ← ").count() > 3 && !all.contains("… 0 more"), "{all}");
        let few = text(&screen(30, 0, 64), 80, 24);
        let shown = few.lines().filter(|line| line.contains("key-")).count();
        assert!(shown > 0 && few.contains(&format!("  … {} more", 30 - shown)), "{few}");
        // The caller may have more rows than it passes.
        let mut partial = screen(16, 0, 64);
        partial.blocked.total = 30;
        let many = text(&partial, 80, 100);
        assert!(many.contains("key-15") && many.contains("  … 14 more"), "{many}");
    }

    #[test]
    fn a_selected_row_is_visible_and_marked() {
        let mut screen = screen(30, 12, 64);
        for height in [16, 24, 50] {
            for selected in [0, 7, 29] {
                screen.blocked.selected = Some(selected);
                let lines = lay_out(&screen, (80, height));
                let marked: Vec<String> =
                    lines.iter().filter(|line| line.is_selected).map(|line| line.line.text()).collect();
                assert_eq!(marked.len(), 1, "{selected} of {height}: {marked:?}");
                assert!(marked[0].starts_with(&format!("> key-{selected} ")), "{marked:?}");
            }
        }
    }

    #[test]
    fn what_the_log_leaves_over_goes_to_other_sections() {
        let wanted = Rows { consumers: 2, blocked: 30, groups: 9, operations: 1, log: 64 };
        let rows = allot(30, wanted);
        assert_eq!(rows, Rows { consumers: 2, blocked: 10, groups: 6, operations: 1, log: 11 });
        let quiet = allot(30, Rows { log: 2, ..wanted });
        assert_eq!(quiet, Rows { consumers: 2, blocked: 19, groups: 6, operations: 1, log: 2 });
        assert_eq!(allot(0, wanted), Rows::default());
        for room in 0..200 {
            let rows = allot(room, wanted);
            assert_eq!(rows.sum(), room.min(wanted.sum()), "{room}: {rows:?}");
        }
    }

    #[test]
    fn an_address_that_does_not_fit_beside_the_title_has_its_own_line() {
        let screen = screen(0, 0, 0);
        assert!(text(&screen, 80, 24).starts_with(&format!("Lazaret{}http://", " ".repeat(40))));
        assert!(text(&screen, 25, 24).starts_with("Lazaret\nhttp://"));
    }

    #[test]
    fn the_full_height_shows_every_row() {
        let screen = screen(30, 12, 5);
        let text = text(&screen, 100, full_height(&screen, 100));
        assert!(
            text.contains("key-29") && text.contains("consumer-11") && !text.contains(" more\n"),
            "{text}"
        );
    }
}
