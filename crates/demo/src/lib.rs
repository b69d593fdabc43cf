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
mod live;
mod orders;
mod outcome;
mod paint;
mod report;
mod sender;
mod stage;
mod story;
mod supervisor;
mod terminal;
mod view;
mod watch;
mod worker;

use std::ffi::OsString;

pub use check::Finding;
pub use error::Error;
pub use live::{Seen, Show};
pub use outcome::{OpenLetter, Outcome};
pub use terminal::is_there as is_terminal;
pub use worker::run as work;

use stage::Stage;
use story::Teller;

/// Plays the story to its end by itself, with orders for so many seconds, and checks what it leaves behind. What happens is
/// told a line at a time.
///
/// `command` is how the viewer calls this program, for the commands that he can try meanwhile. `program` starts the worker: a command line to which the folder is added, and which then calls [`work`].
///
/// # Errors
/// When the story cannot be played to its end. That a promise was broken is no error but an [`Outcome`] that is not ok.
pub async fn told(
    program: Vec<OsString>,
    seconds: u32,
    command: &str,
    tell: &mut (dyn FnMut(&str) + Send),
) -> Result<Outcome, Error> {
    let mut stage = Stage::open(program, 0)?;
    let teller = Teller::new(tell);
    let played = tokio::select! {
        played = story::play(&mut stage, seconds, command, teller) => played,
        () = interrupted() => Err(Error::Interrupted),
    };
    stage.leave().await;
    played
}

/// Shows the demo on the terminal until the viewer quits, who repairs the bank and replays with keys. The terminal is given
/// back as it was. `program` as for [`told`].
///
/// # Errors
/// When there is no terminal, or the worker cannot be kept running.
pub async fn live(program: Vec<OsString>, show: &Show) -> Result<Seen, Error> {
    live::play(program, show).await
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
