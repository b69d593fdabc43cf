//! Aborts the process when an input takes too long or too much memory.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the process is checked.
const INTERVAL: Duration = Duration::from_millis(200);
/// The time of one input. Inputs have 64 KiB at most and take microseconds, so that this is reached by a hang, and not on a busy
/// machine.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// The memory of the whole process.
const MEMORY_LIMIT: u64 = 4 << 30;

/// The input that is being checked.
struct Current {
    seed: u64,
    since: Instant,
}

/// Watches one run of a target. Dropped, it stops.
pub(crate) struct Watch {
    current: Arc<Mutex<Option<Current>>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(crate) fn start(target: &'static str) -> Self {
        let current = Arc::new(Mutex::new(None));
        let (stop, stopped) = channel();
        let watched = Arc::clone(&current);
        let thread = std::thread::spawn(move || watch(target, &watched, &stopped));
        Self { current, stop: Some(stop), thread: Some(thread) }
    }

    /// Sets the seed of the current input.
    pub(crate) fn enter(&self, seed: u64) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Current { seed, since: Instant::now() });
    }

    /// Ends the current input, before slower work such as shrinking.
    pub(crate) fn leave(&self) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to report.
            let _ = thread.join();
        }
    }
}

fn watch(target: &str, current: &Mutex<Option<Current>>, stopped: &Receiver<()>) {
    while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let current = current.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Current { seed, since }) = &*current else { continue };
        let why = if since.elapsed() > TIME_LIMIT {
            format!("the input takes longer than {} s", TIME_LIMIT.as_secs())
        } else if resident_bytes().is_some_and(|bytes| bytes > MEMORY_LIMIT) {
            format!("the process takes more than {} MiB of memory", MEMORY_LIMIT >> 20)
        } else {
            continue;
        };
        eprintln!("{}", crate::target::report(target, *seed, &why));
        std::process::abort();
    }
}

/// The memory of the process, where the system tells.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
