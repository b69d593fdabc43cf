//! `#[checkpoint]`: how often the position of a change stream is saved, and where the stream starts.

use proc_macro2::{Span, TokenStream};

use super::{Setting, Settings};
use crate::arguments::{Arguments, Errors};

pub(crate) const NAME: &str = "checkpoint";

const KNOWN: [&str; 6] =
    ["every", "interval", "idle_heartbeat", "start_position", "on_history_lost", "on_invalidate"];

/// Reads the settings.
pub(crate) fn read(span: Span, tokens: TokenStream, errors: &mut Errors) -> Vec<Setting> {
    let arguments = Arguments::read(NAME, span, tokens, &KNOWN, errors);
    let mut settings = Settings::new(&arguments, errors);
    settings.set_count("every", "source.mongodb.checkpoint.every", 1, 1_000_000);
    settings.set_duration("interval", "source.mongodb.checkpoint.interval");
    settings.set_duration("idle_heartbeat", "source.mongodb.checkpoint.idle-heartbeat");
    settings.set_choice("start_position", "source.mongodb.start", &["resume", "latest", "oplog-start"]);
    settings.set_choice(
        "on_history_lost",
        "source.mongodb.on-history-lost",
        &["fail", "from-now", "from-oplog-start"],
    );
    settings.set_choice("on_invalidate", "source.mongodb.on-invalidate", &["stop", "start-after"]);
    settings.list
}
