//! `top`: watches a daemon on the terminal: consumers, blocked keys, groups and operations, with keys to look, pause and replay.
//!
//! - `snapshot`: what the screen shows, read from the API at an interval.
//! - `app`: what keys and responses change. It does no I/O, so that every step can be tested.
//! - `open_dialog`, `view`: fill the screen of [`lazaret_tui`].
//! - `request`: what a key asks of the daemon, on the same paths as `retry`, `pause` and `op`.
//! - `session`: the loop over keys, snapshots and responses.

mod app;
mod open_dialog;
mod request;
mod session;
mod snapshot;
mod view;

use clap::Args;
use jiff::SignedDuration;
use lazaret_tui::frame_text;

use super::Run;
use super::status::poll_interval;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::output::Format;
use snapshot::Reader;

/// The interval of refreshes unless another is given.
const DEFAULT_INTERVAL: SignedDuration = SignedDuration::from_secs(1);
/// The width of a frame without a terminal.
const FRAME_WIDTH: usize = 120;

/// Watch a daemon on the terminal.
#[derive(Debug, Args)]
pub struct Top {
    /// Print one frame as text and exit; needs no terminal
    #[arg(long)]
    once: bool,

    /// Refresh at this interval; default: 1s
    #[arg(long, value_name = "DURATION", value_parser = poll_interval, conflicts_with = "once")]
    interval: Option<SignedDuration>,
}

impl Run for Top {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        if context.format() != Format::Table {
            let hint = "use `lazaret status --watch --json`";
            return Err(Error::usage_hint("top draws a screen, and has no other format", hint));
        }
        if self.once {
            let snapshot = Reader::new(context.client()?).read().await?;
            let width = u16::try_from(context.screen.width().min(FRAME_WIDTH)).unwrap_or(u16::MAX);
            let frame = frame_text(&view::frame(&snapshot, &context.global.url, context.now()), width);
            context.screen.raw(format!("{}\n", frame.trim_end()).as_bytes())?;
            return Ok(Exit::Ok);
        }
        if !lazaret_tui::is_terminal() {
            let hint = "print one frame with `lazaret top --once`, or changes with `lazaret status --watch`";
            return Err(Error::usage_hint("top needs a terminal", hint));
        }
        session::run(context, self.interval.unwrap_or(DEFAULT_INTERVAL).unsigned_abs()).await
    }
}
