//! Lazaret's demo: the whole story on the embedded defaults, in a temporary folder, without a server.
//!
//! A shop sends the orders of 200 customers. A payment service is flaky, and one of its banks fails altogether; a few orders
//! are poison, and one of them kills the process. A **worker** (the program itself, started once more) handles the orders with a
//! [`lazaret::Consumer`] on an SQLite store, a file source and a flight recorder, and serves the API beside it. The **stage**
//! sends orders, starts the worker again when it dies, and shows what happens.
//!
//! - [`live`] shows it on a terminal, with keys to repair the bank and to replay.
//! - [`told`] plays the story to its end by itself, and checks from the outside that the promises were kept: from the orders
//!   as they were sent, the handler's own journal and the letters in the store.

mod board;
mod check;
mod error;
mod evidence;
mod folder;
mod handler;
mod journal;
mod orders;
mod outcome;
mod report;
mod sender;
mod stage;
mod story;
mod supervisor;
mod watch;
mod worker;

use std::ffi::OsString;

pub use check::Finding;
pub use error::Error;
pub use outcome::{OpenLetter, Outcome};
pub use worker::run as work;

use stage::Stage;
use story::Teller;

/// Plays the story to its end by itself, with orders for so many seconds, and checks what it leaves behind. What happens is
/// told a line at a time.
///
/// `program` starts the worker: a command line to which the folder is added, and which then calls [`work`].
///
/// # Errors
/// When the story cannot be played to its end. That a promise was broken is no error but an [`Outcome`] that is not ok.
pub async fn told(
    program: Vec<OsString>,
    seconds: u32,
    tell: &mut (dyn FnMut(&str) + Send),
) -> Result<Outcome, Error> {
    let mut stage = Stage::open(program, 0)?;
    let teller = Teller::new(tell);
    tokio::select! {
        played = story::play(&mut stage, seconds, teller) => played,
        // The folder and the worker go with the stage.
        () = interrupted() => Err(Error::Interrupted),
    }
}

/// Waits until the process is asked to end.
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
