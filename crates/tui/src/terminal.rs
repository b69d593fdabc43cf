//! The terminal: raw mode on the alternate screen, restored at the end.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread::JoinHandle;

use ratatui_core::buffer::{Buffer, Cell};
use ratatui_core::layout::Rect;
use ratatui_core::style::{Color, Modifier};
use ratatui_core::widgets::Widget;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

use crate::key::{Key, KeyParser};
use crate::screen::Screen;
use crate::widget::ScreenWidget;

/// Enters the alternate screen and hides the cursor.
const BEGIN: &str = "\x1b[?1049h\x1b[?25l";
/// Shows the cursor and leaves the alternate screen.
const END: &str = "\x1b[?25h\x1b[?1049l";
/// Erases the screen.
const ERASE: &str = "\x1b[2J";
/// Ends a frame: the cursor stays hidden.
const END_OF_FRAME: &str = "\x1b[?25l";
/// The interval at which the key reader checks whether to stop.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// The maximum number of keys waiting to be handled. Further keys are dropped.
const MAX_KEYS: usize = 64;
/// The size of a terminal that does not report one.
const DEFAULT_SIZE: (u16, u16) = (80, 24);

/// The terminal modes from before raw mode, while raw mode lasts. A process has one terminal.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Returns `true` if standard input and output are terminals.
pub fn is_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// A terminal in raw mode. Dropping it restores the terminal. A panic restores the terminal before the
/// panic message is printed.
pub struct Terminal {
    color: bool,
    /// The content of the terminal. Only changed cells are sent.
    shown: Buffer,
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Enters raw mode, and returns a channel of keys. Ctrl-C arrives as a key.
    ///
    /// # Errors
    /// When there is no terminal.
    pub fn open(color: bool) -> io::Result<(Self, mpsc::Receiver<Key>)> {
        restore_on_panic();
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let (keys, pressed) = mpsc::channel(MAX_KEYS);
        let stop = Arc::new(AtomicBool::new(false));
        let reader = std::thread::spawn({
            let stop = stop.clone();
            move || read_keys(&keys, &stop)
        });
        let terminal = Self { color, shown: Buffer::default(), stop, reader: Some(reader) };
        send(BEGIN)?;
        Ok((terminal, pressed))
    }

    /// Returns the current size in columns and rows.
    pub fn size(&self) -> (u16, u16) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
            _ => DEFAULT_SIZE,
        }
    }

    /// Draws the screen at the current size of the terminal.
    ///
    /// # Errors
    /// When the terminal has closed.
    pub fn draw(&mut self, screen: &Screen) -> io::Result<()> {
        let (width, height) = self.size();
        let area = Rect::new(0, 0, width, height);
        let mut next = Buffer::empty(area);
        ScreenWidget { screen, color: self.color }.render(area, &mut next);
        let mut frame = String::new();
        if self.shown.area != area {
            frame.push_str(ERASE);
            self.shown = Buffer::empty(area);
        }
        encode(&self.shown.diff(&next), &mut frame);
        frame.push_str(END_OF_FRAME);
        self.shown = next;
        send(&frame)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Joined before leaving raw mode: a pending read would otherwise block until a complete line.
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        restore();
    }
}

/// Writes changed cells. Moves the cursor where cells are not adjacent, and writes styles where they change.
fn encode(changed: &[(u16, u16, &Cell)], frame: &mut String) {
    let mut next = None;
    let mut style = String::new();
    for (x, y, cell) in changed {
        // Writing to a string cannot fail.
        if next != Some((*x, *y)) {
            let _ = write!(frame, "\x1b[{};{}H", y + 1, x + 1);
        }
        let wanted = style_of(cell);
        if wanted != style {
            let _ = write!(frame, "\x1b[0{wanted}m");
            style = wanted;
        }
        frame.push_str(cell.symbol());
        let width = unicode_width::UnicodeWidthStr::width(cell.symbol());
        next = Some((x.saturating_add(u16::try_from(width).unwrap_or(1)), *y));
    }
    if !style.is_empty() {
        frame.push_str("\x1b[0m");
    }
}

/// Returns the parameters of a cell's style, each preceded by a semicolon. Covers the styles that tones use.
fn style_of(cell: &Cell) -> String {
    let modifiers = [(Modifier::BOLD, ";1"), (Modifier::DIM, ";2"), (Modifier::REVERSED, ";7")];
    let modifiers = modifiers.iter().filter(|(modifier, _)| cell.modifier.contains(*modifier));
    let color = match cell.fg {
        Color::Red => ";31",
        Color::Green => ";32",
        Color::Yellow => ";33",
        Color::Cyan => ";36",
        _ => "",
    };
    modifiers.map(|(_, code)| *code).chain([color]).collect()
}

fn send(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Restores the terminal, once. Errors are ignored, because the terminal may have closed.
fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        let _ = send(END);
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &before);
    }
}

/// Restores the terminal before a panic message is printed, which would be lost on the alternate screen.
fn restore_on_panic() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
    });
}

/// Reads keys on a separate thread, because a read from a terminal cannot be cancelled.
fn read_keys(keys: &mpsc::Sender<Key>, stop: &AtomicBool) {
    let mut parser = KeyParser::default();
    let mut buffer = [0; 64];
    while !stop.load(Ordering::Acquire) {
        let stdin = io::stdin();
        let mut wait = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut wait, Some(&POLL_INTERVAL)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return,
        }
        // Bypasses the buffer of the standard library: buffered bytes would not wake the poll above.
        match rustix::io::read(&stdin, &mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(read) => {
                for key in parser.parse(&buffer[..read]) {
                    // Keys are dropped when the channel is full.
                    let _ = keys.try_send(key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ratatui_core::style::Style;

    use super::*;

    #[test]
    fn only_changed_cells_are_sent_and_styles_where_they_change() {
        let before = Buffer::empty(Rect::new(0, 0, 20, 2));
        let mut after = before.clone();
        after.set_string(0, 0, "ab", Style::new().fg(Color::Red).add_modifier(Modifier::BOLD));
        after.set_string(2, 0, "c", Style::new());
        after.set_string(5, 1, "漢字", Style::new());
        let frame = |before: &Buffer, after: &Buffer| {
            let mut frame = String::new();
            encode(&before.diff(after), &mut frame);
            frame
        };
        assert_eq!(frame(&before, &after), "\x1b[1;1H\x1b[0;1;31mab\x1b[0mc\x1b[2;6H漢字");
        assert_eq!(frame(&after, &after), "");
        let mut later = after.clone();
        later.set_string(1, 0, "x", Style::new().add_modifier(Modifier::REVERSED));
        assert_eq!(frame(&after, &later), "\x1b[1;2H\x1b[0;1;7;31mx\x1b[0m");
    }
}
