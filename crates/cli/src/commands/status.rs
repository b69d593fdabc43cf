//! `status`: shows consumers, open letters and operations.

use clap::Args;
use jiff::Timestamp;
use lazaret_api::{Breaker, Consumer, ConsumerState, Fuse, Instance, OperationState, Pause, PauseScope};

use super::Run;
use crate::context::Context;
use crate::error::Result;
use crate::exit::Exit;
use crate::hints::resume_command;
use crate::output::{Cell, Column, Format, Line, Record, Screen, Tone, age, count, print_page, span};

/// Show consumers, open letters and operations.
#[derive(Debug, Args)]
pub struct Status {}

impl Run for Status {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let status = context.client()?.status().await?;
        let (screen, now) = (&context.screen, context.now());
        if context.format() != Format::Table {
            print_page(screen, context.format(), &status, &status.consumers, now)?;
            return Ok(Exit::Ok);
        }
        if status.consumers.is_empty() {
            screen.info("no consumers");
            screen.next_command("lazaret run -c lazaret.yaml");
            return Ok(Exit::Ok);
        }
        screen.table(&Consumer::table(&status.consumers, now))?;
        if !status.store.durable {
            let line = Line::new().add("store", Tone::Strong).add(" not durable", Tone::Warning);
            screen.line(&line.plain(": letters and positions are lost when the process exits"))?;
        }
        for consumer in &status.consumers {
            print_notes(screen, consumer, now)?;
        }
        if !status.operations.is_empty() {
            screen.line(&Line::new())?;
            screen.table(&Record::table(&status.operations, now))?;
        }
        // A process alone is not a fleet.
        if status.instances.len() > 1 {
            screen.line(&Line::new())?;
            screen.table(&Record::table(&status.instances, now))?;
        }
        screen.next_command(&next(&status));
        Ok(Exit::Ok)
    }
}

/// Prints why a consumer is failed, blocked or paused.
fn print_notes(screen: &Screen, consumer: &Consumer, now: Timestamp) -> Result<()> {
    if let Some(error) = &consumer.error {
        let name = Line::new().add(&consumer.name, Tone::Strong);
        let name = match consumer.state {
            ConsumerState::Failed => name.add(" failed: ", Tone::Bad),
            _ => name.add(" waits: ", Tone::Warning),
        };
        screen.line(&name.plain(error))?;
    }
    if consumer.store_trouble {
        let name = Line::new().add(&consumer.name, Tone::Strong);
        screen.line(&name.add(" is blocked: the store does not accept letters", Tone::Bad))?;
    }
    if matches!(consumer.breaker, Breaker::Open | Breaker::HalfOpen) {
        let name = Line::new().add(&consumer.name, Tone::Strong);
        screen.line(&name.add(
            format!(" circuit breaker {}: handler calls are limited", consumer.breaker.as_str()),
            Tone::Bad,
        ))?;
    }
    for pause in &consumer.pauses {
        screen.line(&pause_line(&consumer.name, pause, now))?;
    }
    Ok(())
}

/// Formats a pause: who paused what, when and why.
pub(super) fn pause_line(consumer: &str, pause: &Pause, now: Timestamp) -> Line {
    let what = match pause.scope {
        PauseScope::Consumer => String::new(),
        PauseScope::Stream => format!(" stream {}", pause.stream.as_deref().unwrap_or("?")),
        PauseScope::Partition => {
            let number = pause.partition.map_or_else(|| "?".to_owned(), |number| number.to_string());
            format!(" partition {}/{number}", pause.stream.as_deref().unwrap_or("?"))
        }
        PauseScope::Sequence => format!(" sequence {}", pause.sequence.as_deref().unwrap_or("?")),
        PauseScope::Replay => " replays".to_owned(),
    };
    let line = Line::new().add(consumer, Tone::Strong).plain(what).add(" paused", Tone::Warning);
    line.plain(format!(" by {}, {} ago: {}", pause.who, age(pause.since, now), pause.why))
}

fn next(status: &lazaret_api::Status) -> String {
    let pauses = status.consumers.iter().flat_map(|consumer| {
        consumer.pauses.iter().filter_map(move |pause| Some((pause, resume_command(&consumer.name, pause)?)))
    });
    // Suggest the widest pause first.
    if let Some((_, resume)) = pauses.min_by_key(|(pause, _)| scope_rank(pause.scope)) {
        return resume;
    }
    if let Some(operation) = status.operations.first() {
        let id = &operation.id;
        return match operation.state {
            // A second person runs this.
            OperationState::AwaitingApproval => format!("lazaret op approve {id} --reason TEXT"),
            // A paused operation makes no progress to watch.
            OperationState::Paused => format!("lazaret op show {id}"),
            _ => format!("lazaret op watch {id}"),
        };
    }
    let has_letters =
        |consumer: &Consumer| consumer.dead + consumer.parked + consumer.quarantined + consumer.retrying > 0;
    if status.consumers.iter().any(has_letters) {
        "lazaret groups".to_owned()
    } else {
        "lazaret tail".to_owned()
    }
}

/// Ranks pauses by scope, the widest first.
fn scope_rank(scope: PauseScope) -> u8 {
    match scope {
        PauseScope::Consumer => 0,
        PauseScope::Stream => 1,
        PauseScope::Partition => 2,
        PauseScope::Replay => 3,
        PauseScope::Sequence => 4,
    }
}

fn number(value: Option<u64>) -> Cell {
    Cell::or_dash(value.map(count))
}

/// Formats a count that should be 0.
fn problem_count(value: u64, tone: Tone) -> Cell {
    let cell = Cell::new(count(value));
    if value == 0 { cell.tone(Tone::Dim) } else { cell.tone(tone) }
}

impl Record for Instance {
    const COLUMNS: &'static [Column] = &[
        Column::new("INSTANCE").min_width(8),
        Column::new("VERSION").drop_priority(2),
        Column::new("CONSUMERS").drop_priority(1),
        Column::new("PARTITIONS"),
        Column::new("SEEN").right(),
    ];
    const CSV: &'static [&'static str] = &["instance", "version", "started-at", "last-seen"];

    fn cells(&self, now: Timestamp) -> Vec<Cell> {
        let partitions = self.partitions.iter().map(|of| format!("{}/{}", of.stream, of.partition));
        let partitions: Vec<String> = partitions.collect();
        let or_dash = |words: &[String]| Cell::or_dash((!words.is_empty()).then(|| words.join(" ")));
        vec![
            Cell::new(&self.instance).tone(Tone::Strong),
            Cell::new(&self.version),
            or_dash(&self.consumers),
            or_dash(&partitions),
            Cell::new(format!("{} ago", age(self.last_seen, now))),
        ]
    }
}

impl Record for Consumer {
    const COLUMNS: &'static [Column] = &[
        Column::new("CONSUMER").min_width(8),
        Column::new("STATE"),
        Column::new("LAG").right().drop_priority(2),
        Column::new("IN-FLIGHT").right().drop_priority(5),
        Column::new("HANDLED").right().drop_priority(4),
        Column::new("FAILED").right().drop_priority(3),
        Column::new("RETRYING").right(),
        Column::new("DEAD").right(),
        Column::new("PARKED").right().drop_priority(6),
        Column::new("QUARANTINED").right().drop_priority(7),
        Column::new("WAITING").right().drop_priority(1),
        Column::new("OLDEST").right(),
        Column::new("FUSE").drop_priority(9),
        Column::new("BREAKER").drop_priority(8),
    ];
    const CSV: &'static [&'static str] = &[
        "name",
        "state",
        "lag",
        "in-flight",
        "handled",
        "failed",
        "retrying",
        "dead",
        "parked",
        "quarantined",
        "waiting",
        "oldest-age-seconds",
        "fuse",
        "breaker",
    ];

    fn cells(&self, _now: Timestamp) -> Vec<Cell> {
        let state = match self.state {
            ConsumerState::Running => Tone::Good,
            ConsumerState::Failed => Tone::Bad,
            ConsumerState::Paused => Tone::Warning,
            ConsumerState::Starting | ConsumerState::Stopped | ConsumerState::Elsewhere => Tone::Dim,
        };
        let fuse = if self.fuse == Fuse::Blown { Tone::Bad } else { Tone::Dim };
        let breaker =
            if matches!(self.breaker, Breaker::Open | Breaker::HalfOpen) { Tone::Bad } else { Tone::Dim };
        vec![
            Cell::new(&self.name).tone(Tone::Strong),
            Cell::new(self.state.as_str()).tone(state),
            number(self.lag),
            number(self.in_flight),
            number(self.handled),
            number(self.failed),
            problem_count(self.retrying, Tone::Warning),
            problem_count(self.dead, Tone::Bad),
            problem_count(self.parked, Tone::Warning),
            problem_count(self.quarantined, Tone::Bad),
            problem_count(self.waiting, Tone::Warning),
            Cell::or_dash(self.oldest_age_seconds.map(span)),
            Cell::new(self.fuse.as_str()).tone(fuse),
            Cell::new(self.breaker.as_str()).tone(breaker),
        ]
    }
}
