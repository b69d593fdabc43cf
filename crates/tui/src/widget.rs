//! Draws a screen on a buffer.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};
use ratatui_core::widgets::Widget;

use crate::dialog::{Dialog, inner};
use crate::layout::{full_height, lay_out};
use crate::screen::Screen;
use crate::styled_line::StyledLine;

/// A widget that draws a screen.
#[derive(Clone, Copy, Debug)]
pub struct ScreenWidget<'a> {
    /// The screen to draw.
    pub screen: &'a Screen,
    /// Whether to use colors.
    pub color: bool,
}

impl Widget for ScreenWidget<'_> {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let lines = lay_out(self.screen, (area.width.into(), area.height.into()));
        for (line, y) in lines.iter().zip(area.y..area.bottom()) {
            self.draw(&line.line, Rect { y, height: 1, ..area }, line.is_selected, buffer);
        }
        if let Some(dialog) = &self.screen.dialog {
            self.draw_dialog(dialog, area, buffer);
        }
    }
}

impl ScreenWidget<'_> {
    fn draw(&self, line: &StyledLine, area: Rect, is_selected: bool, buffer: &mut Buffer) {
        buffer.set_line(area.x, area.y, &line.to_line(self.color), area.width);
        if is_selected && self.color {
            buffer.set_style(area, Style::new().add_modifier(Modifier::REVERSED));
        }
    }

    fn draw_dialog(&self, dialog: &Dialog, screen: Rect, buffer: &mut Buffer) {
        let area = dialog.area(screen);
        let inside = inner(area);
        if inside.is_empty() {
            return;
        }
        draw_frame(area, buffer);
        let title = StyledLine::new().plain(format!(" {} ", dialog.title)).fit(inside.width.into());
        self.draw(&title, Rect { x: inside.x, y: area.y, width: inside.width, height: 1 }, false, buffer);
        let body = dialog.body(inside.width);
        let height = usize::from(inside.height);
        // The bottom is kept, because it holds the input and the keys.
        let bottom = body.bottom.len().min(height);
        let visible = height - bottom;
        let first = match body.chosen {
            Some(chosen) => (chosen + 1).saturating_sub(visible),
            None => dialog.scroll.min(body.lines.len().saturating_sub(visible)),
        };
        let shown = body.lines.iter().enumerate().skip(first).take(visible);
        for ((index, line), y) in shown.zip(inside.y..) {
            self.draw(line, Rect { y, height: 1, ..inside }, body.chosen == Some(index), buffer);
        }
        let skipped = body.bottom.len() - bottom;
        for (line, y) in body.bottom[skipped..].iter().zip(inside.bottom() - bottom as u16..) {
            self.draw(line, Rect { y, height: 1, ..inside }, false, buffer);
        }
    }
}

/// Erases an area and draws its border.
fn draw_frame(area: Rect, buffer: &mut Buffer) {
    let line = "─".repeat(area.width.saturating_sub(2).into());
    for y in area.y..area.bottom() {
        let row = match y {
            y if y == area.y => format!("┌{line}┐"),
            y if y + 1 == area.bottom() => format!("└{line}┘"),
            _ => format!("│{}│", " ".repeat(line.chars().count())),
        };
        for x in area.x..area.right() {
            buffer[(x, y)].reset();
        }
        buffer.set_stringn(area.x, y, row, area.width.into(), Style::new());
    }
}

/// Returns one frame as text, high enough for every row, without trailing blanks.
pub fn frame_text(screen: &Screen, width: u16) -> String {
    let height = u16::try_from(full_height(screen, width.into())).unwrap_or(u16::MAX);
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    ScreenWidget { screen, color: false }.render(buffer.area, &mut buffer);
    buffer_text(&buffer)
}

/// Returns the text of a buffer. Skips the placeholder cells after wide characters.
fn buffer_text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for y in buffer.area.y..buffer.area.bottom() {
        let mut line = String::new();
        let mut covered = 0;
        for x in buffer.area.x..buffer.area.right() {
            let symbol = buffer[(x, y)].symbol();
            if covered == 0 {
                line.push_str(symbol);
                covered = unicode_width::UnicodeWidthStr::width(symbol).max(1);
            }
            covered -= 1;
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui_core::backend::TestBackend;
    use ratatui_core::style::Color;
    use ratatui_core::terminal::Terminal;

    use super::*;
    use crate::dialog::Input;
    use crate::screen::{BlockedKey, Consumer, Group, HeadState, KeyHint, LogEntry, Operation, Section};
    use crate::styled_line::Tone;

    fn screen() -> Screen {
        let consumer = Consumer {
            name: "shop".into(),
            state: "running".into(),
            tone: Tone::Good,
            dead: 3,
            retrying: 1,
            waiting: 40,
            lag: Some(1204),
            rate: Some(70.0),
            ..Consumer::default()
        };
        let key = |name: &str, head| BlockedKey {
            name: name.into(),
            head,
            lane: vec!["order-7".into(), "order-9".into()],
            letters: 4,
            is_paused: false,
        };
        let keys = vec![
            key("ada-0", HeadState::Held("dead".into())),
            key("漢字\u{1b}[2J", HeadState::Retrying { attempt: 2, due_in: Some(Duration::from_secs(5)) }),
        ];
        let group = Group {
            dead: 3,
            behind: 40,
            reason: "TIMEOUT".into(),
            message: "no answer\nfrom the bank".into(),
            ..Group::default()
        };
        let operation = Operation {
            id: "op_1".into(),
            state: "running".into(),
            tone: Tone::Hint,
            letters: 8,
            ok: 4,
            ..Operation::default()
        };
        Screen {
            title: StyledLine::of("Lazaret", Tone::Strong).plain("  1 consumer"),
            address: StyledLine::of("http://127.0.0.1:7117", Tone::Hint),
            consumers: Some(Section::new("CONSUMERS", vec![consumer])),
            blocked: Section::new("2 KEYS BLOCKED", keys).note("all others are not affected").select(Some(0)),
            groups: Section::new("LETTERS BY CAUSE", vec![group]),
            operations: Section::new("OPERATIONS", vec![operation]),
            log: Section::new(
                "LOG",
                vec![LogEntry { at: "13:00:01".into(), text: "op_1 started".into(), tone: Tone::Good }],
            ),
            keys: vec![KeyHint::new("r", "replay"), KeyHint::new("q", "quit")],
            ..Screen::default()
        }
    }

    fn drawn(screen: &Screen, (width, height): (u16, u16), color: bool) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| frame.render_widget(ScreenWidget { screen, color }, frame.area())).unwrap();
        terminal.backend().buffer().clone()
    }

    #[test]
    fn a_screen_on_common_terminals() {
        let at = |size| buffer_text(&drawn(&screen(), size, false));
        let wide = at((100, 20));
        let title = format!("Lazaret  1 consumer{}http://127.0.0.1:7117\n", " ".repeat(40));
        assert!(wide.starts_with(&title), "{wide}");
        for part in [
            "  shop     running     3 dead     1 retrying    40 waiting  70/s  lag 1,204\n",
            "2 KEYS BLOCKED  all others are not affected\n> ada-0 ",
            "    3 dead 40 behind  TIMEOUT  no answer",
            "  op_1 running [############............] 4/8, 4 ok, 0 failed again\n",
            "LOG\n  13:00:01 op_1 started\n",
            "\n r  replay   q  quit\n",
        ] {
            assert!(wide.contains(part), "{part} is not in\n{wide}");
        }
        // The address does not fit next to the title.
        let narrow = at((40, 20));
        assert!(narrow.starts_with("Lazaret  1 consumer\nhttp://127.0.0.1:7117\n"), "{narrow}");
        // A small terminal keeps the top and the keys.
        let small = at((40, 8));
        let lines: Vec<&str> = small.lines().collect();
        assert_eq!((lines.len(), lines[7]), (8, " r  replay   q  quit"), "{small}");
    }

    #[test]
    fn a_dialog_over_the_screen() {
        let plan = Dialog {
            title: "replay ada-0".into(),
            lines: vec![
                StyledLine::of("12 letters of 3 sequences", Tone::Strong),
                StyledLine::of("a second person must approve this operation before it starts", Tone::Warning),
            ],
            input: Some(Input { label: "reason".into(), text: "the bank is up again".into() }),
            keys: vec![KeyHint::new("Enter", "begin"), KeyHint::new("Esc", "cancel")],
            ..Dialog::default()
        };
        let lane = Dialog {
            title: "ada-0".into(),
            lines: vec![StyledLine::new().plain("4 letters")],
            choices: (0..9).map(|index| StyledLine::new().plain(format!("letter {index}"))).collect(),
            selected: 8,
            keys: vec![KeyHint::new("Esc", "back")],
            ..Dialog::default()
        };
        let at = |dialog: &Dialog, size| {
            buffer_text(&drawn(&Screen { dialog: Some(dialog.clone()), ..screen() }, size, false))
        };
        let text = at(&plan, (60, 16));
        for part in [
            "┌─ replay ada-0 ─",
            "│ 12 letters of 3 sequences ",
            // Long lines are wrapped.
            "│ a second person must approve this operation before it ",
            "│ starts ",
            "│ reason: the bank is up again▏ ",
            "│  Enter  begin   Esc  cancel ",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        // The chosen row is visible even when not all rows fit.
        let text = at(&lane, (60, 10));
        assert!(text.contains("│ > letter 8 ") && !text.contains("letter 2"), "{text}");
        // A dialog without room does not panic.
        for size in [(1, 1), (3, 2), (4, 3), (10, 4)] {
            at(&plan, size);
            at(&lane, size);
        }
    }

    #[test]
    fn a_long_text_is_scrolled_to_its_end_and_not_further() {
        let mut dialog = Dialog {
            lines: (0..40).map(|index| StyledLine::new().plain(format!("line {index}"))).collect(),
            ..Dialog::default()
        };
        let size = (60, 12);
        dialog.scroll = dialog.max_scroll(size);
        let text = buffer_text(&drawn(&Screen { dialog: Some(dialog.clone()), ..screen() }, size, false));
        assert!(text.contains("line 39") && !text.contains("line 3 "), "{text}");
        dialog.scroll += 7;
        let beyond = buffer_text(&drawn(&Screen { dialog: Some(dialog), ..screen() }, size, false));
        assert_eq!(beyond, text);
    }

    #[test]
    fn colors_can_be_disabled() {
        let styles = |color| {
            let buffer = drawn(&screen(), (100, 20), color);
            let is_styled =
                |cell: &&ratatui_core::buffer::Cell| cell.fg != Color::Reset || !cell.modifier.is_empty();
            buffer.content().iter().filter(is_styled).count()
        };
        assert_eq!(styles(false), 0);
        assert!(styles(true) > 100);
    }

    #[test]
    fn a_frame_is_text_and_what_messages_choose_cannot_control_a_terminal() {
        let text = frame_text(&screen(), 100);
        assert!(text.contains(r"漢字\u{1b}[2J"), "{text}");
        assert!(text.contains(r"no answer\nfrom the bank") && !text.contains('\u{1b}'), "{text}");
        assert!(text.lines().all(|line| !line.ends_with(' ')), "{text:?}");
    }
}
