//! Reads server-sent events, with ids to resume after a broken connection.

use bytes::Bytes;
use reqwest::Response;

use super::lines::Lines;
use crate::error::Result;

/// One event of the stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// The id to resume after.
    pub id: Option<String>,
    /// The event name.
    pub name: Option<String>,
    /// The data.
    pub data: String,
}

/// An open event stream.
pub struct EventStream {
    lines: Lines,
    parser: Parser,
}

impl EventStream {
    pub(super) fn new(response: Response, url: String) -> Self {
        Self { lines: Lines::new(response, url), parser: Parser::default() }
    }

    /// Returns the next event; `None` when the server ended the stream.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn next(&mut self) -> Result<Option<SseEvent>> {
        while let Some(line) = self.lines.next().await? {
            if let Some(event) = self.parser.line(&line) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }
}

/// Parses lines into events, as the HTML standard defines.
#[derive(Default)]
struct Parser {
    event: SseEvent,
    has_data: bool,
}

impl Parser {
    fn line(&mut self, line: &Bytes) -> Option<SseEvent> {
        let text = String::from_utf8_lossy(line);
        if text.is_empty() {
            let event = std::mem::take(&mut self.event);
            return std::mem::take(&mut self.has_data).then_some(event);
        }
        // A line that starts with a colon is a comment: the heartbeat.
        let (field, value) = text.split_once(':').unwrap_or((&text, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if self.has_data {
                    self.event.data.push('\n');
                }
                self.has_data = true;
                self.event.data.push_str(value);
            }
            "id" => self.event.id = Some(value.to_owned()),
            "event" => self.event.name = Some(value.to_owned()),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_events() {
        let mut parser = Parser::default();
        let text =
            ": hello\n\nid: 7\nevent: failed\ndata: {\"a\":\ndata:1}\n\nevent: lost\n\nretry: 5\ndata\n\n";
        let events: Vec<_> =
            text.lines().filter_map(|line| parser.line(&Bytes::from(line.to_owned()))).collect();
        let first =
            SseEvent { id: Some("7".into()), name: Some("failed".into()), data: "{\"a\":\n1}".into() };
        assert_eq!(events, [first, SseEvent::default()]);
    }
}
