//! Lazaret's demo: a guided story in a temporary folder, with the embedded defaults and without a server.
//!
//! A shop sends the orders of 200 customers. The payment service is flaky, and one of its banks goes
//! down. A few orders are poison, and one of them crashes the process. A **worker** (this program,
//! started a second time) handles the orders with a [`lazaret::Consumer`] on an SQLite store, a file
//! source and a flight recorder. It also serves the API and the console. The **session** sends orders,
//! restarts the worker when it crashes, and shows the progress.
//!
//! - [`run_live`] runs the demo on a terminal, with keys to repair the bank and to replay.
//! - [`run_headless`] runs the story to its end. It then verifies the guarantees from outside: from the
//!   orders as sent, the handler's own journal and the stored letters.
//!
//! # Modules
//!
//! - `orders`, `handler`: the stream of orders, and the handler with its bugs and its payment service.
//! - `worker`, `worker_state`, `protocol`: the process with the consumer, the API and the console, and
//!   its reports to the session.
//! - `session`, `supervisor`, `sender`, `folder`: restart the worker, send orders, and manage files.
//! - `journal`, `console_pages`, `evidence`, `check`, `outcome`: verify the guarantees, independently of
//!   the engine.
//! - `story`: runs without a terminal. `live`, `dashboard`, `view`: run on a terminal, drawn by
//!   [`lazaret_tui`].

mod check;
mod console_pages;
mod dashboard;
mod error;
mod evidence;
mod folder;
mod handler;
mod journal;
mod live;
mod orders;
mod outcome;
mod protocol;
mod sender;
mod session;
mod story;
mod supervisor;
mod view;
mod worker;
mod worker_state;

use std::ffi::OsString;

pub use check::Finding;
pub use error::Error;
pub use live::{LiveOptions, LiveSummary};
pub use outcome::{OpenLetter, Outcome};
pub use worker::run as run_worker;

use session::Session;
use story::LogWriter;

/// Runs the story to its end and verifies the guarantees. Orders are sent for this many seconds. Calls
/// `print` for each log line.
///
/// `program` is the command line of the worker. It receives the folder as an extra argument and must
/// call [`run_worker`]. `command` is how the user calls this program, for the suggested commands.
///
/// # Errors
/// When the story cannot be completed. A broken guarantee is not an error. It yields an [`Outcome`] that
/// is not ok.
pub async fn run_headless(
    program: Vec<OsString>,
    seconds: u32,
    command: &str,
    print: &mut (dyn FnMut(&str) + Send),
) -> Result<Outcome, Error> {
    let mut session = Session::open(program, 0)?;
    let log = LogWriter::new(print);
    let played = tokio::select! {
        played = story::play(&mut session, seconds, command, log) => played,
        () = interrupted() => Err(Error::Interrupted),
    };
    session.shut_down().await;
    played
}

/// Runs the demo on the terminal until the user quits, with keys to repair the bank and to replay.
/// Restores the terminal at the end. For `program`, see [`run_headless`].
///
/// # Errors
/// When there is no terminal, or the worker does not keep running.
pub async fn run_live(program: Vec<OsString>, options: &LiveOptions) -> Result<LiveSummary, Error> {
    live::play(program, options).await
}

/// Waits for a signal that ends the process.
async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut hang_up)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()), signal(SignalKind::hangup()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
    }
}
