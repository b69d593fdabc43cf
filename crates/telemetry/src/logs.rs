//! Log output on standard error, as text or JSON. It contains no payloads, no keys and, by default, no error texts.

use std::io::{self, Write};

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Installs the global subscriber for this level: `error`, `warn`, `info`, `debug` or `trace`. Does nothing when one is
/// installed already.
pub fn init(format: Format, level: &str) {
    let level = parse_level(level);
    // Other crates log from level `warn` on: their lines may contain anything.
    let others = level.min(LevelFilter::WARN);
    let wanted = Targets::new().with_default(others).with_target("lazaret", level);
    let lines = tracing_subscriber::fmt::layer().with_writer(|| Sanitizing(io::stderr())).with_ansi(false);
    let lines = match format {
        Format::Json => {
            lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
        Format::Text => lines.with_target(false).boxed(),
    };
    let _ = tracing_subscriber::registry().with(lines.with_filter(wanted)).try_init();
}

/// Escapes control and bidirectional characters. Message ids come from producers: none may move a cursor, change the text
/// direction, or forge a log line.
struct Sanitizing<W>(W);

impl<W: Write> Write for Sanitizing<W> {
    /// Receives a whole line: the subscriber writes each event at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_all(sanitize(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Replaces invisible characters with JSON escapes, and indents after a line break inside the line: no log line starts with
/// an indent.
fn sanitize(line: &str) -> String {
    let (text, end) = line.strip_suffix('\n').map_or((line, ""), |text| (text, "\n"));
    let mut shown = String::with_capacity(line.len());
    for c in text.chars() {
        match c {
            '\n' => shown.push_str("\n    | "),
            c if c.is_control() || is_invisible(c) => shown.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => shown.push(c),
        }
    }
    shown.push_str(end);
    shown
}

fn is_invisible(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn parse_level(name: &str) -> LevelFilter {
    name.parse::<Level>().map_or(LevelFilter::INFO, LevelFilter::from_level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_bidirectional_characters_are_escaped() {
        assert_eq!(sanitize("stopped ü 用\n"), "stopped ü 用\n");
        assert_eq!(sanitize("id=\u{1b}]0;pwn\u{7}\n"), "id=\\u001b]0;pwn\\u0007\n");
        assert_eq!(
            sanitize("id=x\r\n2026 ERROR all is lost\n"),
            "id=x\\u000d\n    | 2026 ERROR all is lost\n"
        );
        assert_eq!(sanitize("\u{202e}evil\u{2066}\n"), "\\u202eevil\\u2066\n");
        assert_eq!(sanitize("{\"id\":\"\u{202e}\"}\n"), "{\"id\":\"\\u202e\"}\n", "JSON stays JSON");
        let mut written = Vec::new();
        Sanitizing(&mut written).write_all(b"a\xff\x07\n").unwrap();
        assert_eq!(written, "a\u{fffd}\\u0007\n".as_bytes());
    }

    #[test]
    fn every_level_is_parsed_by_its_name() {
        for (name, expected) in [
            ("error", LevelFilter::ERROR),
            ("warn", LevelFilter::WARN),
            ("info", LevelFilter::INFO),
            ("debug", LevelFilter::DEBUG),
            ("trace", LevelFilter::TRACE),
        ] {
            assert_eq!(parse_level(name), expected);
        }
    }
}
