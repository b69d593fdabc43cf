//! `adopt`: dead letters and positions of other tools become those of a consumer.

mod axon;
mod flowwarden;
mod topics;

use clap::Subcommand;
use lazaret_config::TopicFormat;

use super::Run;
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;

/// Adopt the dead letters of another tool.
#[derive(Debug, Subcommand)]
pub enum Adopt {
    /// Adopt a dead-letter topic of Spring Kafka
    SpringDlt(topics::Topics),
    /// Adopt a dead-letter queue of Kafka Connect
    Connect(topics::Topics),
    /// Adopt a dead-letter queue of Kafka Streams
    Streams(topics::Topics),
    /// Adopt a dead-letter topic with headers x-original-*, as Spring Cloud Stream writes them
    XOriginal(topics::Topics),
    /// Adopt the dead letters of Axon's table in PostgreSQL; stop the event processors first
    Axon(axon::Axon),
    /// Adopt FlowWarden's dead letters, and go on where its stream stopped; stop FlowWarden first
    #[command(name = "flowwarden")]
    FlowWarden(flowwarden::FlowWarden),
}

impl Run for Adopt {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        match self {
            Self::SpringDlt(topics) => topics.run(TopicFormat::SpringDlt, context).await,
            Self::Connect(topics) => topics.run(TopicFormat::Connect, context).await,
            Self::Streams(topics) => topics.run(TopicFormat::Streams, context).await,
            Self::XOriginal(topics) => topics.run(TopicFormat::XOriginal, context).await,
            Self::Axon(axon) => axon.run(context).await,
            Self::FlowWarden(flowwarden) => flowwarden.run(context).await,
        }
    }
}

/// What the commands have in common.
#[cfg(any(feature = "kafka", feature = "mongodb", feature = "postgres"))]
mod common {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use lazaret_daemon::adopt::{AdoptionError, Report, Tally};

    use crate::error::Error;
    use crate::output::{Screen, count, plural};

    /// The number of records between two lines of progress where standard error is no terminal.
    const LOG_EVERY: u64 = 10_000;

    /// What a tool calls its dead letters, and what it groups them by.
    #[derive(Clone, Copy)]
    pub(super) struct Words {
        pub(super) record: &'static str,
        pub(super) others: &'static str,
    }

    /// The counts in one line.
    pub(super) fn letters_line(counts: &Tally, dry_run: bool, words: Words) -> String {
        let adopted = if dry_run { "to adopt" } else { "adopted" };
        let mut parts = vec![
            format!("{} {adopted}", count(counts.adopted)),
            format!("{} already there", count(counts.already_there)),
        ];
        let more = [(counts.closed, "closed"), (counts.foreign, words.others), (counts.unknown, "unknown")];
        parts.extend(more.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", count(*n))));
        let damaged = match counts.damaged {
            0 => String::new(),
            damaged => format!("; {} incomplete", count(damaged)),
        };
        format!("{}: {}{damaged}", plural(counts.read, words.record), parts.join(", "))
    }

    pub(super) fn error(error: AdoptionError) -> Error {
        match error {
            AdoptionError::NoConsumer(..) => Error::not_found(error.to_string()),
            AdoptionError::Invalid(why) => Error::usage(why),
            AdoptionError::Config(error) => {
                let (what, hint) = error.message_and_hint();
                Error::usage_hint(what, hint)
            }
            other => Error::Other(other.to_string()),
        }
    }

    /// Shows the progress on standard error.
    pub(super) fn progress<C>(
        screen: &Screen,
        words: Words,
    ) -> impl Fn(&Report<C>) + Clone + Send + Sync + 'static {
        let bar = screen.stderr_is_terminal().then(|| {
            let target = indicatif::ProgressDrawTarget::stderr_with_hz(10);
            indicatif::ProgressBar::with_draw_target(None, target)
        });
        let (screen, logged) = (screen.clone(), Arc::new(AtomicU64::new(0)));
        move |report| {
            let (read, all) = (report.run.read, report.run.read + report.left);
            match &bar {
                Some(bar) if report.left == 0 => bar.finish_and_clear(),
                Some(bar) => {
                    bar.set_length(all);
                    bar.set_position(read);
                }
                None if read >= logged.load(Ordering::Relaxed) + LOG_EVERY => {
                    logged.store(read, Ordering::Relaxed);
                    screen.info(&format!("{} of {}", count(read), plural(all, words.record)));
                }
                None => {}
            }
        }
    }
}
