//! `#[dead_letter_queue]`: settings for the letters of messages that failed for good.

use proc_macro2::{Span, TokenStream};

use super::{Setting, Settings, quoted};
use crate::arguments::{Arguments, Errors};

pub(crate) const NAME: &str = "dead_letter_queue";

const KNOWN: [&str; 10] = [
    "enabled",
    "collection",
    "ttl_days",
    "include_original_document",
    "include_stack_trace",
    "on_dead",
    "reprocess_strategy",
    "reprocess_cron",
    "reprocess_batch_size",
    "client",
];

/// A hundred years, the longest duration that the configuration accepts.
const LONGEST_DAYS: u64 = 36_500;

/// The dead-letter queue.
#[derive(Default)]
pub(crate) struct DeadLetterQueue {
    pub(crate) settings: Vec<Setting>,
    pub(crate) collection: Option<String>,
    pub(crate) client: Option<String>,
}

impl DeadLetterQueue {
    pub(crate) fn read(span: Span, tokens: TokenStream, errors: &mut Errors) -> Self {
        let arguments = Arguments::read(NAME, span, tokens, &KNOWN, errors);
        let mut settings = Settings::new(&arguments, errors);
        settings.set_flag("enabled", "dead-letter.enabled");
        settings.set("ttl_days", "dead-letter.ttl", |argument| {
            argument
                .count(0, LONGEST_DAYS)
                .map(|days| if days == 0 { "0".to_owned() } else { format!("{days}d") })
        });
        settings.set_flag("include_original_document", "dead-letter.include-payload");
        settings.set_flag("include_stack_trace", "dead-letter.include-backtrace");
        settings.set("on_dead", "dead-letter.on-dead", |argument| {
            argument.choice(&["hold", "continue"]).map(str::to_owned)
        });
        settings.set("reprocess_strategy", "dead-letter.reprocess.strategy", |argument| {
            let strategy = argument.choice(&["manual", "cron", "auto-cron"])?;
            Ok(if strategy == "auto-cron" { "cron" } else { strategy }.to_owned())
        });
        settings.set("reprocess_cron", "dead-letter.reprocess.cron", |argument| {
            let schedule = argument.string()?;
            match schedule.split_whitespace().count() {
                5 | 6 => Ok(quoted(&schedule)),
                fields => Err(argument.error(format!(
                    "a schedule has 5 fields, or 6 with seconds, and this one has {fields}: minute, hour, day, month, weekday"
                ))),
            }
        });
        settings.set_count(
            "reprocess_batch_size",
            "dead-letter.reprocess.batch-size",
            1,
            u64::from(u32::MAX),
        );
        let collection = settings.read("collection", |argument| argument.string());
        let client = settings.read("client", |argument| argument.string());
        Self { settings: settings.list, collection, client }
    }
}
