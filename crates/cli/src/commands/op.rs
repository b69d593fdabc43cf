//! `op`: operations, and what to tell them.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use lazaret_api::{Command, Item, Operation, OperationState, Outcome};

use super::Run;
use crate::client::Client;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::hints::short_id;
use crate::output::{
    Cell, Column, Fields, Format, Line, Record, Tone, age, count, moment, plural, print_page, span,
};
use crate::paging::{Paging, print_list};
use crate::standstill::{Hold, holds, holds_in};
use crate::watch::{Ended, Interrupt, exit_of, numbers, wait};

/// Operations.
#[derive(Debug, Subcommand)]
pub enum Op {
    /// Operations, the latest first
    Ls(List),
    /// One operation, and the letters in it
    Show(Show),
    /// Wait until an operation is over or paused. Ctrl-C stops waiting, not the operation
    Watch(Watch),
    /// Hold an operation; letters that are being tried are finished
    Pause(Tell),
    /// Let a paused operation go on
    Resume(Tell),
    /// End an operation; what is done stays done
    Cancel(Tell),
    /// Say yes to what somebody else began
    Approve(Tell),
    /// Say no to what somebody else began
    Reject(Tell),
}

impl Run for Op {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        match self {
            Self::Ls(list) => list.run(context).await,
            Self::Show(show) => show.run(context).await,
            Self::Watch(watch) => watch.run(context).await,
            Self::Pause(tell) => tell.tell(context, Command::Pause).await,
            Self::Resume(tell) => tell.tell(context, Command::Resume).await,
            Self::Cancel(tell) => tell.tell(context, Command::Cancel).await,
            Self::Approve(tell) => tell.tell(context, Command::Approve).await,
            Self::Reject(tell) => tell.tell(context, Command::Reject).await,
        }
    }
}

/// Operations, the latest first.
#[derive(Debug, Args)]
pub struct List {
    #[command(flatten)]
    paging: Paging,
}

impl Run for List {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        let fetch =
            async |after: Option<String>, limit| client.operations(after.as_deref(), Some(limit)).await;
        let listed = print_list(context, &self.paging, fetch, |_| true).await?;
        if context.format() != Format::Table {
            return Ok(Exit::Ok);
        }
        let screen = &context.screen;
        let mut next = print_holds(context, &client, &listed.records).await?;
        match (listed.records.first(), listed.next) {
            (None, _) => {
                screen.say("no operations");
                next.push("lazaret plan retry QUERY".to_owned());
            }
            (Some(_), Some(after)) => next.push(format!("lazaret op ls --after {after}")),
            (Some(first), None) => next.push(format!("lazaret op show {}", first.id)),
        }
        screen.next_of(&next);
        Ok(Exit::Ok)
    }
}

/// Says which of these operations stand still, and why; what to do about it comes back.
async fn print_holds(context: &Context, client: &Client, operations: &[Operation]) -> Result<Vec<String>> {
    let mut ends = Vec::new();
    let is_running = |operation: &&Operation| operation.state == OperationState::Running;
    let mut running = operations.iter().filter(is_running).peekable();
    if running.peek().is_none() {
        return Ok(ends);
    }
    let status = client.status().await?;
    for operation in running {
        for hold in holds_in(client, &status, operation).await {
            context.screen.line(&hold_line(operation, &hold))?;
            ends.extend(hold.end.filter(|end| !ends.contains(end)));
        }
    }
    Ok(ends)
}

fn outcome() -> impl TypedValueParser<Value = Outcome> {
    let words: Vec<&'static str> = Outcome::ALL.iter().map(|outcome| outcome.as_str()).collect();
    PossibleValuesParser::new(words).try_map(|word| word.parse::<Outcome>())
}

/// One operation.
#[derive(Debug, Args)]
pub struct Show {
    /// The operation
    id: String,

    /// Show its letters and what became of each
    #[arg(long)]
    items: bool,

    /// Show its letters with this outcome
    #[arg(long, value_parser = outcome())]
    outcome: Option<Outcome>,

    #[command(flatten)]
    paging: Paging,
}

impl Run for Show {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        let operation = client.operation(&self.id).await?;
        let is_table = context.format() == Format::Table;
        if !self.items && self.outcome.is_none() {
            let holds = if is_table { holds(&client, &operation).await } else { Vec::new() };
            return print_operation(context, &operation, &holds);
        }
        let fetch = async |after: Option<String>, limit| {
            client.operation_items(&self.id, after.as_deref(), Some(limit)).await
        };
        let wanted = |item: &Item| self.outcome.is_none_or(|outcome| item.outcome == Some(outcome));
        let listed = print_list(context, &self.paging, fetch, wanted).await?;
        if is_table {
            match (listed.records.first(), listed.next) {
                (None, _) => {
                    context.screen.say("no letters");
                    context.screen.next(&format!("lazaret op show {}", operation.id));
                }
                (_, Some(next)) => {
                    let outcome =
                        self.outcome.map_or_else(String::new, |outcome| format!(" --outcome {outcome}"));
                    context
                        .screen
                        .next(&format!("lazaret op show {} --items{outcome} --after {next}", operation.id));
                }
                (Some(first), None) => {
                    context.screen.next(&format!("lazaret show {}", short_id(&first.letter)));
                }
            }
        }
        Ok(Exit::Ok)
    }
}

/// Why an operation stands still, on one line.
fn hold_line(operation: &Operation, hold: &Hold) -> Line {
    let line = Line::new().add(&operation.id, Tone::Strong);
    line.add(" waits", Tone::Warning).plain(format!(": {}", hold.why))
}

fn print_operation(context: &Context, operation: &Operation, holds: &[Hold]) -> Result<Exit> {
    let (screen, now) = (&context.screen, context.now());
    if context.format() != Format::Table {
        print_page(screen, context.format(), operation, std::slice::from_ref(operation), now)?;
        return Ok(Exit::Ok);
    }
    for line in describe(operation, holds, now).lines() {
        screen.line(&line)?;
    }
    screen.next_of(&next(operation, holds));
    Ok(Exit::Ok)
}

fn describe(operation: &Operation, holds: &[Hold], now: Timestamp) -> Fields {
    let mut fields = Fields::new();
    fields.toned("operation", &operation.id, Tone::Strong);
    fields.toned("state", operation.state.as_str(), tone(operation));
    holds.iter().for_each(|hold| fields.toned("waits", &hold.why, Tone::Warning));
    fields.maybe("note", operation.note.as_deref());
    fields.add("action", format!("{} {}", operation.action, plural(operation.letters, "letter")));
    fields.add("so far", numbers(operation));
    fields.add("plan", &operation.plan);
    let rate = operation.rate.map_or_else(|| "unlimited".to_owned(), |rate| format!("{rate}/s"));
    fields.add("rate", rate);
    if !operation.ramp.is_empty() {
        let stages: Vec<String> = operation.ramp.iter().map(|letters| count(*letters)).collect();
        fields.add("ramp", format!("{}, then the rest", stages.join(", ")));
    }
    fields.maybe("stops at", operation.stop_at.map(|share| format!("{}% failed again", share * 100.0)));
    fields.maybe("not before", operation.start_at.map(|at| moment(at, now)));
    fields.add("begun by", format!("{} ({}): {}", operation.by.who, operation.by.via, operation.by.why));
    if operation.needs_approval {
        let by = operation.approved_by.as_ref();
        fields
            .add("approval", by.map_or_else(|| "not yet".to_owned(), |by| format!("{}: {}", by.who, by.why)));
    }
    fields.add("begun", moment(operation.created_at, now));
    fields.maybe("ended", operation.ended_at.map(|at| moment(at, now)));
    fields
}

/// Wait for an operation.
#[derive(Debug, Args)]
pub struct Watch {
    /// The operation
    id: String,
}

impl Run for Watch {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        let mut interrupt = Interrupt::listen();
        let operation = client.operation(&self.id).await?;
        match wait(context, &client, operation, &mut interrupt, true).await? {
            Ended::Still(operation) => {
                print_outcome(context, &operation, &[])?;
                Ok(exit_of(&operation))
            }
            Ended::Detached => Ok(Exit::Interrupted),
        }
    }
}

/// Tell an operation what to do.
#[derive(Debug, Args)]
pub struct Tell {
    /// The operation
    id: String,

    /// Why; it stands in the audit. Without it the audit says only that it was done on the command line
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Tell {
    async fn tell(self, context: &Context, command: Command) -> Result<Exit> {
        let reason = self.reason.unwrap_or_else(|| format!("{command} on the command line"));
        if reason.trim().is_empty() {
            return Err(Error::usage("the reason is empty"));
        }
        let client = context.client()?;
        let operation = client.command(&self.id, command, &reason).await?;
        let holds = holds(&client, &operation).await;
        print_outcome(context, &operation, &holds)?;
        Ok(Exit::Ok)
    }
}

/// How an operation stands, on one line, and why it does not move; then what comes next.
pub(super) fn print_outcome(context: &Context, operation: &Operation, holds: &[Hold]) -> Result<()> {
    let screen = &context.screen;
    match context.format() {
        Format::Table => {
            screen.line(&outcome_line(operation))?;
            holds.iter().for_each(|hold| screen.talk(&hold_line(operation, hold)));
            screen.next_of(&next(operation, holds));
            Ok(())
        }
        Format::Json | Format::Jsonl => screen.json_line(operation),
        Format::Csv => operation.print_line(screen, Format::Csv, true),
    }
}

pub(super) fn outcome_line(operation: &Operation) -> Line {
    let line = Line::new()
        .add(&operation.id, Tone::Strong)
        .plain(" ")
        .add(operation.state.as_str(), tone(operation));
    let took = operation
        .ended_at
        .map(|end| format!(", in {}", span(end.duration_since(operation.created_at).as_secs_f64())));
    let note = operation.note.as_ref().map(|note| format!(" ({note})"));
    line.plain(format!(": {}{}{}", numbers(operation), took.unwrap_or_default(), note.unwrap_or_default()))
}

/// The next useful commands for an operation that stands like this, and is held by this.
fn next(operation: &Operation, holds: &[Hold]) -> Vec<String> {
    let ends = holds.iter().filter_map(|hold| hold.end.clone());
    ends.chain(next_of_state(operation)).collect()
}

/// The next useful commands for an operation in this state.
fn next_of_state(operation: &Operation) -> Vec<String> {
    let id = &operation.id;
    let tell = |verb: &str| format!("lazaret op {verb} {id} --reason TEXT");
    let watch = || format!("lazaret op watch {id}");
    let failed = || format!("lazaret op show {id} --outcome failed-again");
    match operation.state {
        // A second person does the first of them.
        OperationState::AwaitingApproval => vec![tell("approve"), watch()],
        OperationState::Scheduled | OperationState::Running => vec![watch()],
        OperationState::Paused if operation.failed_again > 0 => {
            vec![failed(), tell("resume"), tell("cancel")]
        }
        OperationState::Paused => vec![tell("resume"), tell("cancel")],
        _ if operation.failed_again > 0 => vec![failed()],
        _ => vec!["lazaret status".to_owned()],
    }
}

fn tone(operation: &Operation) -> Tone {
    match operation.state {
        // It did all it was told to, and that was not enough.
        OperationState::Done if operation.failed_again > 0 => Tone::Bad,
        OperationState::Done => Tone::Good,
        OperationState::Running | OperationState::Scheduled => Tone::Plain,
        OperationState::AwaitingApproval | OperationState::Paused => Tone::Warning,
        OperationState::Cancelled | OperationState::Rejected => Tone::Bad,
    }
}

impl Record for Operation {
    const COLUMNS: &'static [Column] = &[
        Column::new("OPERATION"),
        Column::new("ACTION").drop(4),
        Column::new("STATE"),
        Column::new("LETTERS").right(),
        Column::new("SENT").right().drop(3),
        Column::new("OK").right(),
        Column::new("FAILED AGAIN").right(),
        Column::new("SKIPPED").right().drop(1),
        Column::new("AGE").right().drop(2),
        Column::new("BY").cut(6).drop(5),
        Column::new("WHY").cut(8).drop(6),
    ];
    const CSV: &'static [&'static str] = &[
        "id",
        "state",
        "sent",
        "ok",
        "failed-again",
        "skipped",
        "letters",
        "plan",
        "action",
        "note",
        "stage",
        "rate",
        "stop-at",
        "start-at",
        "by.who",
        "by.why",
        "approved-by.who",
        "created-at",
        "updated-at",
        "ended-at",
    ];

    fn cells(&self, now: Timestamp) -> Vec<Cell> {
        let failed = if self.failed_again > 0 { Tone::Bad } else { Tone::Dim };
        vec![
            Cell::new(&self.id).tone(Tone::Strong),
            Cell::new(self.action.as_str()),
            Cell::new(self.state.as_str()).tone(tone(self)),
            Cell::new(count(self.letters)),
            Cell::new(count(self.sent)),
            Cell::new(count(self.ok)),
            Cell::new(count(self.failed_again)).tone(failed),
            Cell::new(count(self.skipped)),
            Cell::new(age(self.created_at, now)),
            Cell::new(&self.by.who),
            Cell::new(&self.by.why),
        ]
    }
}

impl Record for Item {
    const COLUMNS: &'static [Column] = &[
        Column::new("PLACE").right().drop(2),
        Column::new("LETTER"),
        Column::new("QUEUE").cut(8).drop(1),
        Column::new("SEQUENCE").cut(8),
        Column::new("OUTCOME"),
    ];
    const CSV: &'static [&'static str] = &["ordinal", "letter", "queue", "sequence", "outcome"];

    fn cells(&self, _now: Timestamp) -> Vec<Cell> {
        let outcome = match self.outcome {
            None => Cell::new("-").tone(Tone::Dim),
            Some(Outcome::Ok) => Cell::new("ok").tone(Tone::Good),
            Some(Outcome::FailedAgain) => Cell::new("failed-again").tone(Tone::Bad),
            Some(skipped) => Cell::new(skipped.as_str()).tone(Tone::Warning),
        };
        vec![
            Cell::new(self.ordinal.to_string()),
            Cell::new(short_id(&self.letter)).tone(Tone::Strong),
            Cell::new(&self.queue),
            Cell::new(&self.sequence),
            outcome,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::snapshots::operation;

    #[test]
    fn what_is_done_is_good_only_if_all_of_it_went_well() {
        assert_eq!(tone(&operation(OperationState::Done, 0)), Tone::Good);
        assert_eq!(tone(&operation(OperationState::Done, 1)), Tone::Bad);
    }

    #[test]
    fn commands_that_change_something_are_named_with_their_reason() {
        assert_eq!(
            next(&operation(OperationState::Paused, 0), &[]),
            ["lazaret op resume op_31 --reason TEXT", "lazaret op cancel op_31 --reason TEXT"]
        );
    }
}
