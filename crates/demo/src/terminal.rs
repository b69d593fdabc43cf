//! The terminal: keys as they are pressed, a screen of its own, and everything as it was before when it is over.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

/// What is written to begin: a screen of its own, no cursor.
const BEGIN: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J";
/// What is written at the end: the cursor, and the screen from before.
const END: &[u8] = b"\x1b[?25h\x1b[?1049l";
/// How long the reader of keys waits before it looks whether it should end.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// What is taken for the size of a terminal that does not tell.
const SIZE: (usize, usize) = (80, 24);

/// Whether somebody sits there: keys come from a terminal and what is shown goes to one.
pub fn is_there() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// A terminal in our hands. Dropping it gives it back as it was, after a panic as well.
pub(crate) struct Terminal {
    before: Termios,
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Takes the terminal. Keys come as they are pressed; Ctrl-C is one of them.
    pub(crate) fn take() -> io::Result<(Self, mpsc::Receiver<u8>)> {
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

    /// How many columns and rows there are now.
    pub(crate) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (usize::from(size.ws_col), usize::from(size.ws_row))
            }
            _ => SIZE,
        }
    }

    /// Shows these lines in place of those before.
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
        // First, and while keys still come one by one: a read that has begun would wait for a whole line otherwise, and we
        // for it.
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

/// Reads keys on a thread of its own, because a read from a terminal cannot be called off.
fn read_keys(keys: &mpsc::Sender<u8>, stop: &AtomicBool) {
    let mut buffer = [0; 64];
    while !stop.load(Ordering::Acquire) {
        let stdin = io::stdin();
        let mut wait = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut wait, Some(&LOOK_EVERY)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return,
        }
        // Past the buffer of the standard library: what is left there would not wake the wait above.
        match rustix::io::read(&stdin, &mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(read) => {
                // What comes as one piece with an escape in front is an arrow or the like, not letters.
                let pressed = if buffer[0] == 0x1b { &buffer[..1] } else { &buffer[..read] };
                for key in pressed {
                    // Whoever presses faster than anybody looks need not be heard.
                    let _ = keys.try_send(*key);
                }
            }
        }
    }
}
