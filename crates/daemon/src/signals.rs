//! What the system asks of the process.

use std::io;

use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// What the process was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// To stop. The number is that of the signal.
    Stop(u8),
    /// To read its configuration again.
    Reload,
}

/// Listens to signals from when it is made, so that none that comes while everything opens is lost.
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

    /// Waits for the next one. Cancellation safe.
    pub(crate) async fn next(&mut self) -> Asked {
        const INTERRUPT: u8 = 2;
        const TERMINATE: u8 = 15;
        tokio::select! {
            _ = self.terminate.recv() => Asked::Stop(TERMINATE),
            _ = self.interrupt.recv() => Asked::Stop(INTERRUPT),
            _ = self.hang_up.recv() => Asked::Reload,
        }
    }
}
