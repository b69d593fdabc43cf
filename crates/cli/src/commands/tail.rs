//! `tail`: follows what happens, and comes back after a broken connection to where it was.

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
use crate::output::{Cell, Column, Format, Line, Record, Tone, age};
use crate::watch::{Interrupt, numbers};

/// How long to wait before coming back: the first time, and at most.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Follow what happens.
#[derive(Debug, Args)]
pub struct Tail {
    /// Only what concerns this consumer
    #[arg(long, value_name = "CONSUMER")]
    consumer: Option<String>,

    /// Only these kinds of events
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = kind())]
    kind: Vec<EventKind>,

    /// End after so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

fn kind() -> impl TypedValueParser<Value = EventKind> {
    let words: Vec<&'static str> = EventKind::ALL.iter().map(|kind| kind.as_str()).collect();
    PossibleValuesParser::new(words).try_map(|word| serde_json::from_value::<EventKind>(word.into()))
}

impl Run for Tail {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        let mut interrupt = Interrupt::listen();
        let exit = tokio::select! {
            followed = self.follow(context, &client) => followed.map(|()| Exit::Ok)?,
            () = interrupt.heard() => Exit::Interrupted,
        };
        if context.format() == Format::Table {
            context.screen.next("lazaret ls");
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
        // The first connection says what is wrong; later ones are made again.
        let mut stream = client.events(&parameters, None).await?;
        if context.format() == Format::Table {
            context.screen.say("following; Ctrl-C ends it");
        }
        loop {
            match stream.next().await {
                Ok(Some(event)) => {
                    position.wait = FIRST_WAIT;
                    position.last = event.id.or(position.last);
                    let event = serde_json::from_str(&event.data).map_err(|error| Error::Unreadable {
                        path: "/v1/events".to_owned(),
                        why: error.to_string(),
                    })?;
                    self.print(context, &event, position.printed == 0)?;
                    position.printed += 1;
                    if self.limit.is_some_and(|limit| position.printed >= limit) {
                        return Ok(());
                    }
                }
                Ok(None) | Err(Error::Unreachable { .. }) => {
                    context.screen.warn("the connection ended; trying again");
                    stream = self.come_back(client, &parameters, &mut position).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn come_back(
        &self,
        client: &Client,
        parameters: &[(&str, String)],
        position: &mut Position,
    ) -> Result<crate::client::EventStream> {
        loop {
            tokio::time::sleep(position.wait).await;
            position.wait = (position.wait * 2).min(LONGEST_WAIT);
            match client.events(parameters, position.last.as_deref()).await {
                Err(Error::NothingListens { .. } | Error::Unreachable { .. }) => {}
                answered => return answered,
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

/// How far the events were followed.
struct Position {
    last: Option<String>,
    printed: u64,
    wait: Duration,
}

impl Default for Position {
    fn default() -> Self {
        Self { last: None, printed: 0, wait: FIRST_WAIT }
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

/// One event on one line: when, what, where, and what else it knows.
fn line(event: &Event) -> Line {
    let time = Timestamp::from_second(event.at.as_second()).unwrap_or(event.at);
    let line = Line::new().add(time.to_string(), Tone::Dim).plain(" ");
    let line = line.add(format!("{:15}", event.kind.as_str()), tone(event.kind));
    let place = event.queue.as_deref().or(event.consumer.as_deref()).unwrap_or("-");
    line.plain(" ").add(place, Tone::Strong).plain(details(event))
}

/// What the id of an event names. Before there is a letter it is that of the message, which the letter will have as well.
fn named(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Failed | EventKind::RetryScheduled => "id ",
        _ => "letter ",
    }
}

/// When something is due. The first retries are due in less than a second.
fn until(due: Timestamp, at: Timestamp) -> String {
    let milliseconds = due.duration_since(at).as_millis();
    if (1..1000).contains(&milliseconds) { format!("in {milliseconds}ms") } else { age(due, at) }
}

fn details(event: &Event) -> String {
    let mut text = String::new();
    let mut say = |word: &str, value: Option<String>| {
        if let Some(value) = value {
            text.push_str(&format!(" {word}{value}"));
        }
    };
    say(named(event.kind), event.letter.as_deref().map(|letter| short_id(letter).to_owned()));
    say("", event.state.map(|state| state.as_str().to_owned()));
    say("", event.consumer_state.map(|state| state.as_str().to_owned()));
    say("", event.event_type.clone());
    say("", event.reason.clone());
    say("in ", event.phase.map(|phase| phase.as_str().to_owned()));
    say("attempt ", event.attempt.map(|attempt| attempt.to_string()));
    say("group ", event.group.as_deref().map(|group| short_group(group).to_owned()));
    say("due ", event.due_at.map(|due| until(due, event.at)));
    say("letters ", event.letters.map(|letters| letters.to_string()));
    say("partition ", event.partition.clone());
    say("", event.action.clone());
    say("by ", event.who.clone());
    if let Some(operation) = &event.operation {
        say("", Some(format!("{} {}: {}", operation.id, operation.state, numbers(operation))));
    }
    say("why: ", event.why.clone());
    text
}

impl Record for Event {
    const COLUMNS: &'static [Column] =
        &[Column::new("AT"), Column::new("EVENT"), Column::new("WHAT").cut(16)];
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
    fn what_is_due_in_less_than_a_second_is_told_in_milliseconds() {
        let at = |milliseconds| Timestamp::from_millisecond(milliseconds).unwrap();
        assert_eq!(until(at(1300), at(1000)), "in 300ms");
        assert_eq!(until(at(61_000), at(1000)), "in 1m00s");
        assert_eq!(until(at(1000), at(1000)), "0s");
    }

    #[test]
    fn an_event_is_one_line_whatever_stands_in_it() {
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
