//! The terminal in raw mode on the alternate screen, restored at the end.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

/// Enters the alternate screen and hides the cursor.
const BEGIN: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J";
/// Shows the cursor and leaves the alternate screen.
const END: &[u8] = b"\x1b[?25h\x1b[?1049l";
/// The interval at which the key reader checks whether to stop.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// The size of a terminal that does not report one.
const DEFAULT_SIZE: (usize, usize) = (80, 24);

/// Returns whether standard input and output are terminals.
pub fn is_terminal() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// A terminal in raw mode. Dropping it restores the terminal, also after a panic.
pub(crate) struct Terminal {
    before: Termios,
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Enters raw mode. Returns a channel of keys, which includes Ctrl-C.
    pub(crate) fn open() -> io::Result<(Self, mpsc::Receiver<u8>)> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        let (keys, pressed) = mpsc::channel(64);
        let stop = Arc::new(AtomicBool::new(false));
        let reader = std::thread::spawn({
            let stop = stop.clone();
            move || read_keys(&keys, &stop)
        });
        let terminal = Self { before, stop, reader: Some(reader) };
        show(BEGIN)?;
        Ok((terminal, pressed))
    }

    /// Returns the current columns and rows.
    pub(crate) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (usize::from(size.ws_col), usize::from(size.ws_row))
            }
            _ => DEFAULT_SIZE,
        }
    }

    /// Replaces the screen with these lines.
    pub(crate) fn draw(&self, lines: &[String]) -> io::Result<()> {
        let mut frame = String::from("\x1b[H");
        for (index, line) in lines.iter().enumerate() {
            if index > 0 {
                frame.push_str("\r\n");
            }
            frame.push_str(line);
            frame.push_str("\x1b[K");
        }
        frame.push_str("\x1b[J");
        show(frame.as_bytes())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Join the reader before leaving raw mode: a pending read would otherwise block until a complete line.
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        let _ = show(END);
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.before);
    }
}

fn show(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Reads keys on a separate thread, because a read from a terminal cannot be cancelled.
fn read_keys(keys: &mpsc::Sender<u8>, stop: &AtomicBool) {
    let mut buffer = [0; 64];
    while !stop.load(Ordering::Acquire) {
        let stdin = io::stdin();
        let mut wait = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut wait, Some(&POLL_INTERVAL)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return,
        }
        // Bypasses the buffer of the standard library, whose content would not wake the poll above.
        match rustix::io::read(&stdin, &mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(read) => {
                // A chunk that starts with an escape is a special key such as an arrow, not letters.
                let pressed = if buffer[0] == 0x1b { &buffer[..1] } else { &buffer[..read] };
                for key in pressed {
                    // Keys are dropped when the channel is full.
                    let _ = keys.try_send(*key);
                }
            }
        }
    }
}
