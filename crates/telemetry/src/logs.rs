//! Log lines on standard error, for people or for machines. They never hold payloads, keys or, unless somebody asks for
//! it, the words of a failure.

use std::io::{self, Write};

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
    let lines = tracing_subscriber::fmt::layer().with_writer(|| Harmless(io::stderr())).with_ansi(false);
    let lines = match format {
        Format::Json => {
            lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed()
        }
        Format::Text => lines.with_target(false).boxed(),
    };
    let _ = tracing_subscriber::registry().with(lines.with_filter(wanted)).try_init();
}

/// Writes lines in which nothing does something else than being seen. Ids come from whoever can send a message: none may move
/// a cursor, turn the direction of writing, or look like a line of its own.
struct Harmless<W>(W);

impl<W: Write> Write for Harmless<W> {
    /// Takes a whole line: each event is written at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.write_all(harmless(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The line with escapes, as JSON has them, for what is not simply seen. A break inside of it is followed by an indent, which no line
/// begins with.
fn harmless(line: &str) -> String {
    let (text, end) = line.strip_suffix('\n').map_or((line, ""), |text| (text, "\n"));
    let mut shown = String::with_capacity(line.len());
    for c in text.chars() {
        match c {
            '\n' => shown.push_str("\n    | "),
            c if c.is_control() || turns_or_hides(c) => shown.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => shown.push(c),
        }
    }
    shown.push_str(end);
    shown
}

fn turns_or_hides(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn filter(word: &str) -> LevelFilter {
    word.parse::<Level>().map_or(LevelFilter::INFO, LevelFilter::from_level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_line_does_more_than_being_seen() {
        assert_eq!(harmless("stopped ü 用\n"), "stopped ü 用\n");
        assert_eq!(harmless("id=\u{1b}]0;pwn\u{7}\n"), "id=\\u001b]0;pwn\\u0007\n");
        assert_eq!(
            harmless("id=x\r\n2026 ERROR all is lost\n"),
            "id=x\\u000d\n    | 2026 ERROR all is lost\n"
        );
        assert_eq!(harmless("\u{202e}evil\u{2066}\n"), "\\u202eevil\\u2066\n");
        assert_eq!(harmless("{\"id\":\"\u{202e}\"}\n"), "{\"id\":\"\\u202e\"}\n", "JSON stays JSON");
        let mut written = Vec::new();
        Harmless(&mut written).write_all(b"a\xff\x07\n").unwrap();
        assert_eq!(written, "a\u{fffd}\\u0007\n".as_bytes());
    }

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
