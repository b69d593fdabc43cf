//! `tail`: streams events, and resumes after a broken connection.

use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use jiff::Timestamp;
use lazaret_api::{Event, EventKind};

use super::Run;
use crate::client::Client;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::hints::{short_group, short_id};
use crate::operation_summary::progress_counts;
use crate::output::{Cell, Column, Format, Line, Record, Tone, age};
use crate::unknown_names::check_consumer;
use crate::watch::Interrupt;

/// The first and the longest delay before a reconnect.
const FIRST_DELAY: Duration = Duration::from_millis(250);
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Stream events as they happen.
#[derive(Debug, Args)]
pub struct Tail {
    /// Show events of this consumer only
    #[arg(long, value_name = "CONSUMER")]
    consumer: Option<String>,

    /// Show these kinds of events only
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = kind())]
    kind: Vec<EventKind>,

    /// Stop after N events
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

fn kind() -> impl TypedValueParser<Value = EventKind> {
    let words: Vec<&'static str> = EventKind::ALL.iter().map(|kind| kind.as_str()).collect();
    PossibleValuesParser::new(words).try_map(|word| serde_json::from_value::<EventKind>(word.into()))
}

impl Run for Tail {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        if let Some(consumer) = &self.consumer {
            check_consumer(&client, consumer).await?;
        }
        let mut interrupt = Interrupt::listen();
        let exit = tokio::select! {
            followed = self.follow(context, &client) => followed.map(|()| Exit::Ok)?,
            () = interrupt.received() => Exit::Interrupted,
        };
        if context.format() == Format::Table {
            context.screen.next_command("lazaret ls");
        }
        Ok(exit)
    }
}

impl Tail {
    fn parameters(&self) -> Vec<(&'static str, String)> {
        let mut parameters = Vec::new();
        parameters.extend(self.consumer.clone().map(|consumer| ("consumer", consumer)));
        if !self.kind.is_empty() {
            let kinds: Vec<&str> = self.kind.iter().map(|kind| kind.as_str()).collect();
            parameters.push(("kind", kinds.join(",")));
        }
        parameters
    }

    async fn follow(&self, context: &Context, client: &Client) -> Result<()> {
        let parameters = self.parameters();
        let mut position = Position::default();
        // Errors of the first connection are reported; later connections are retried.
        let mut stream = client.events(&parameters, None).await?;
        if context.format() == Format::Table {
            context.screen.info("streaming events; press Ctrl-C to stop");
        }
        loop {
            match stream.next().await {
                Ok(Some(event)) => {
                    position.delay = FIRST_DELAY;
                    position.last = event.id.or(position.last);
                    let event = serde_json::from_str(&event.data).map_err(|error| {
                        Error::InvalidResponse { path: "/v1/events".to_owned(), why: error.to_string() }
                    })?;
                    self.print(context, &event, position.printed == 0)?;
                    position.printed += 1;
                    if self.limit.is_some_and(|limit| position.printed >= limit) {
                        return Ok(());
                    }
                }
                Ok(None) | Err(Error::Unreachable { .. }) => {
                    context.screen.warn("connection lost; reconnecting");
                    stream = self.reconnect(client, &parameters, &mut position).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn reconnect(
        &self,
        client: &Client,
        parameters: &[(&str, String)],
        position: &mut Position,
    ) -> Result<crate::client::EventStream> {
        loop {
            tokio::time::sleep(position.delay).await;
            position.delay = (position.delay * 2).min(MAX_DELAY);
            match client.events(parameters, position.last.as_deref()).await {
                Err(Error::ConnectionRefused { .. } | Error::Unreachable { .. }) => {}
                result => return result,
            }
        }
    }

    fn print(&self, context: &Context, event: &Event, is_first: bool) -> Result<()> {
        match context.format() {
            Format::Table => context.screen.line(&line(event)),
            format => event.print_line(&context.screen, format, is_first),
        }
    }
}

/// The position in the event stream.
struct Position {
    last: Option<String>,
    printed: u64,
    delay: Duration,
}

impl Default for Position {
    fn default() -> Self {
        Self { last: None, printed: 0, delay: FIRST_DELAY }
    }
}

fn tone(kind: EventKind) -> Tone {
    match kind {
        EventKind::LetterClosed | EventKind::Resumed | EventKind::BreakerClosed => Tone::Good,
        EventKind::Failed
        | EventKind::RetryScheduled
        | EventKind::Paused
        | EventKind::Expired
        | EventKind::Reset => Tone::Warning,
        EventKind::LetterStored
        | EventKind::RetryExhausted
        | EventKind::Poison
        | EventKind::HandOffFailed
        | EventKind::BreakerOpened
        | EventKind::FuseBlown
        | EventKind::CommitFailed => Tone::Bad,
        _ => Tone::Plain,
    }
}

/// Formats an event on one line: time, kind, place and details.
fn line(event: &Event) -> Line {
    let time = Timestamp::from_second(event.at.as_second()).unwrap_or(event.at);
    let line = Line::new().add(time.to_string(), Tone::Dim).plain(" ");
    let line = line.add(format!("{:15}", event.kind.as_str()), tone(event.kind));
    let place = event.queue.as_deref().or(event.consumer.as_deref()).unwrap_or("-");
    line.plain(" ").add(place, Tone::Strong).plain(details(event))
}

/// Returns the label of an event's id. Before a letter is stored, it is the id that the letter will have.
fn id_label(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Failed | EventKind::RetryScheduled => "id ",
        _ => "letter ",
    }
}

/// Formats the time until a retry is due, in milliseconds below a second.
fn until(due: Timestamp, at: Timestamp) -> String {
    let milliseconds = due.duration_since(at).as_millis();
    if (1..1000).contains(&milliseconds) { format!("in {milliseconds}ms") } else { age(due, at) }
}

fn details(event: &Event) -> String {
    let mut text = String::new();
    let mut add = |label: &str, value: Option<String>| {
        if let Some(value) = value {
            text.push_str(&format!(" {label}{value}"));
        }
    };
    add(id_label(event.kind), event.letter.as_deref().map(|letter| short_id(letter).to_owned()));
    add("", event.state.map(|state| state.as_str().to_owned()));
    add("", event.consumer_state.map(|state| state.as_str().to_owned()));
    add("", event.event_type.clone());
    add("", event.reason.clone());
    add("in ", event.phase.map(|phase| phase.as_str().to_owned()));
    add("attempt ", event.attempt.map(|attempt| attempt.to_string()));
    add("group ", event.group.as_deref().map(|group| short_group(group).to_owned()));
    add("due ", event.due_at.map(|due| until(due, event.at)));
    add("letters ", event.letters.map(|letters| letters.to_string()));
    add("partition ", event.partition.clone());
    add("", event.action.clone());
    add("by ", event.who.clone());
    if let Some(operation) = &event.operation {
        add("", Some(format!("{} {}: {}", operation.id, operation.state, progress_counts(operation))));
    }
    add("why: ", event.why.clone());
    text
}

impl Record for Event {
    const COLUMNS: &'static [Column] =
        &[Column::new("AT"), Column::new("EVENT"), Column::new("WHAT").min_width(16)];
    const CSV: &'static [&'static str] = &[
        "at",
        "kind",
        "consumer",
        "queue",
        "letter",
        "state",
        "type",
        "reason",
        "phase",
        "group",
        "attempt",
        "due-at",
        "letters",
        "scope",
        "partition",
        "consumer-state",
        "action",
        "who",
        "why",
        "operation.id",
        "operation.state",
    ];

    fn cells(&self, _now: Timestamp) -> Vec<Cell> {
        vec![Cell::new(self.at.to_string()), Cell::new(self.kind.as_str()), Cell::new(details(self))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_due_time_below_a_second_is_shown_in_milliseconds() {
        let at = |milliseconds| Timestamp::from_millisecond(milliseconds).unwrap();
        assert_eq!(until(at(1300), at(1000)), "in 300ms");
        assert_eq!(until(at(61_000), at(1000)), "in 1m00s");
        assert_eq!(until(at(1000), at(1000)), "0s");
    }

    #[test]
    fn an_event_is_one_line_whatever_it_contains() {
        let event = Event {
            queue: Some("shop/mail\n".into()),
            letter: Some("0123456789abcdef".into()),
            reason: Some("TIMEOUT".into()),
            due_at: Some(Timestamp::from_second(90).unwrap()),
            why: Some("\u{1b}[2J".into()),
            ..Event::new(EventKind::RetryScheduled, Timestamp::from_second(30).unwrap())
        };
        assert_eq!(
            line(&event).render(false),
            r"1970-01-01T00:00:30Z retry-scheduled shop/mail\n id 01234567 TIMEOUT due in 1m00s why: \u{1b}[2J"
        );
    }
}
