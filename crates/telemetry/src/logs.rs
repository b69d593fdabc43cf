//! Log lines on standard error, for people or for machines. They never hold payloads, keys or, unless somebody asks for
//! it, the words of a failure.

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Begins to log lines of this level: `error`, `warn`, `info`, `debug` or `trace`. Does nothing when somebody logs already,
/// as in a test.
pub fn begin(format: Format, level: &str) {
    let level = filter(level);
    // Others only when something is wrong: their lines are not ours to vouch for.
    let others = level.min(LevelFilter::WARN);
    let wanted = Targets::new().with_default(others).with_target("lazaret", level);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    let lines = match format {
        Format::Json => {
            lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
        Format::Text => lines.with_target(false).boxed(),
    };
    let _ = tracing_subscriber::registry().with(lines.with_filter(wanted)).try_init();
}

fn filter(word: &str) -> LevelFilter {
    word.parse::<Level>().map_or(LevelFilter::INFO, LevelFilter::from_level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_has_its_word() {
        for (word, expected) in [
            ("error", LevelFilter::ERROR),
            ("warn", LevelFilter::WARN),
            ("info", LevelFilter::INFO),
            ("debug", LevelFilter::DEBUG),
            ("trace", LevelFilter::TRACE),
        ] {
            assert_eq!(filter(word), expected);
        }
    }
}
