//! Signals of the operating system.

use std::io;

use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// A signal to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Stop. The number is that of the signal.
    Stop(u8),
    /// Reload the configuration.
    Reload,
}

/// Listens for signals from its creation, so that none is lost during startup.
pub(crate) struct Signals {
    terminate: Stream,
    interrupt: Stream,
    hang_up: Stream,
}

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal. Cancellation safe.
    pub(crate) async fn next(&mut self) -> Signal {
        const INTERRUPT: u8 = 2;
        const TERMINATE: u8 = 15;
        tokio::select! {
            _ = self.terminate.recv() => Signal::Stop(TERMINATE),
            _ = self.interrupt.recv() => Signal::Stop(INTERRUPT),
            _ = self.hang_up.recv() => Signal::Reload,
        }
    }
}
