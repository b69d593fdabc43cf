//! `op`: lists, watches and controls operations.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use lazaret_api::{Command, Item, Operation, OperationState, Outcome};

use super::Run;
use super::plan::excluded;
use crate::blockers::{Blocker, blockers, blockers_in};
use crate::client::Client;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::hints::short_id;
use crate::operation_summary::{exit_of, progress_counts};
use crate::output::{
    Cell, Column, Fields, Format, Line, Record, Tone, age, count, plural, print_page, span, time_with_age,
};
use crate::paging::{Paging, print_list};
use crate::watch::{Interrupt, WaitOutcome, wait};

/// List, watch and control operations.
#[derive(Debug, Subcommand)]
pub enum Op {
    /// List operations, latest first
    Ls(List),
    /// Show one operation and its letters
    Show(Show),
    /// Wait until an operation is over or paused; Ctrl-C stops waiting, not the operation
    Watch(Watch),
    /// Pause an operation; attempts in progress finish
    Pause(CommandArgs),
    /// Resume a paused operation
    Resume(CommandArgs),
    /// Cancel an operation; processed letters stay processed
    Cancel(CommandArgs),
    /// Approve an operation that another person started
    Approve(CommandArgs),
    /// Reject an operation that another person started
    Reject(CommandArgs),
}

impl Run for Op {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        match self {
            Self::Ls(list) => list.run(context).await,
            Self::Show(show) => show.run(context).await,
            Self::Watch(watch) => watch.run(context).await,
            Self::Pause(args) => args.send(context, Command::Pause).await,
            Self::Resume(args) => args.send(context, Command::Resume).await,
            Self::Cancel(args) => args.send(context, Command::Cancel).await,
            Self::Approve(args) => args.send(context, Command::Approve).await,
            Self::Reject(args) => args.send(context, Command::Reject).await,
        }
    }
}

/// List operations, latest first.
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
        let mut next = print_blockers(context, &client, &listed.records).await?;
        match (listed.records.first(), listed.next) {
            (None, _) => {
                screen.info("no operations");
                next.push("lazaret plan retry QUERY".to_owned());
            }
            (Some(_), Some(after)) => next.push(format!("lazaret op ls --after {after}")),
            (Some(first), None) => next.push(format!("lazaret op show {}", first.id)),
        }
        screen.next_commands(&next);
        Ok(Exit::Ok)
    }
}

/// Prints the blockers of these operations. Returns the commands that remove them.
async fn print_blockers(context: &Context, client: &Client, operations: &[Operation]) -> Result<Vec<String>> {
    let mut commands = Vec::new();
    let is_running = |operation: &&Operation| operation.state == OperationState::Running;
    let mut running = operations.iter().filter(is_running).peekable();
    if running.peek().is_none() {
        return Ok(commands);
    }
    let status = client.status().await?;
    for operation in running {
        for blocker in blockers_in(client, &status, operation).await {
            context.screen.line(&blocker_line(operation, &blocker))?;
            commands.extend(blocker.resolve_with.filter(|command| !commands.contains(command)));
        }
    }
    Ok(commands)
}

fn outcome() -> impl TypedValueParser<Value = Outcome> {
    let words: Vec<&'static str> = Outcome::ALL.iter().map(|outcome| outcome.as_str()).collect();
    PossibleValuesParser::new(words).try_map(|word| word.parse::<Outcome>())
}

/// Show one operation.
#[derive(Debug, Args)]
pub struct Show {
    /// Show the operation with this id
    id: String,

    /// List its letters with their outcomes
    #[arg(long)]
    items: bool,

    /// List its letters with this outcome
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
            let blockers = if is_table { blockers(&client, &operation).await } else { Vec::new() };
            return print_operation(context, &operation, &blockers);
        }
        let fetch = async |after: Option<String>, limit| {
            client.operation_items(&self.id, after.as_deref(), Some(limit)).await
        };
        let wanted = |item: &Item| self.outcome.is_none_or(|outcome| item.outcome == Some(outcome));
        let listed = print_list(context, &self.paging, fetch, wanted).await?;
        if is_table {
            match (listed.records.first(), listed.next) {
                (None, _) => {
                    context.screen.info("no letters");
                    context.screen.next_command(&format!("lazaret op show {}", operation.id));
                }
                (_, Some(next)) => {
                    let outcome =
                        self.outcome.map_or_else(String::new, |outcome| format!(" --outcome {outcome}"));
                    context.screen.next_command(&format!(
                        "lazaret op show {} --items{outcome} --after {next}",
                        operation.id
                    ));
                }
                (Some(first), None) => {
                    context.screen.next_command(&format!("lazaret show {}", short_id(&first.letter)));
                }
            }
        }
        Ok(Exit::Ok)
    }
}

/// Formats a blocker of an operation.
pub(super) fn blocker_line(operation: &Operation, blocker: &Blocker) -> Line {
    let line = Line::new().add(&operation.id, Tone::Strong);
    line.add(" is blocked", Tone::Warning).plain(format!(": {}", blocker.why))
}

fn print_operation(context: &Context, operation: &Operation, blockers: &[Blocker]) -> Result<Exit> {
    let (screen, now) = (&context.screen, context.now());
    if context.format() != Format::Table {
        print_page(screen, context.format(), operation, std::slice::from_ref(operation), now)?;
        return Ok(Exit::Ok);
    }
    for line in describe(operation, blockers, now).lines() {
        screen.line(&line)?;
    }
    screen.next_commands(&next(operation, blockers));
    Ok(Exit::Ok)
}

pub(super) fn describe(operation: &Operation, blockers: &[Blocker], now: Timestamp) -> Fields {
    let mut fields = Fields::new();
    fields.toned("operation", &operation.id, Tone::Strong);
    fields.toned("state", operation.state.as_str(), tone(operation));
    blockers.iter().for_each(|blocker| fields.toned("blocked", &blocker.why, Tone::Warning));
    fields.maybe("note", operation.note.as_deref());
    fields.add("action", format!("{} {}", operation.action, plural(operation.letters, "letter")));
    fields.add("progress", progress_counts(operation));
    if !operation.excluded.is_empty() {
        fields.toned("excludes", excluded(&operation.excluded, &[]), Tone::Warning);
    }
    fields.add("plan", &operation.plan);
    let rate = operation.rate.map_or_else(|| "unlimited".to_owned(), |rate| format!("{rate}/s"));
    fields.add("rate", rate);
    if !operation.ramp.is_empty() {
        let stages: Vec<String> = operation.ramp.iter().map(|letters| count(*letters)).collect();
        fields.add("ramp", format!("{}, then the rest", stages.join(", ")));
    }
    fields.maybe("stops at", operation.stop_at.map(|share| format!("{}% failed again", share * 100.0)));
    fields.maybe("starts at", operation.start_at.map(|at| time_with_age(at, now)));
    fields.add("started by", format!("{} ({}): {}", operation.by.who, operation.by.via, operation.by.why));
    if operation.needs_approval {
        let by = operation.approved_by.as_ref();
        fields
            .add("approval", by.map_or_else(|| "pending".to_owned(), |by| format!("{}: {}", by.who, by.why)));
    }
    fields.add("created", time_with_age(operation.created_at, now));
    fields.maybe("ended", operation.ended_at.map(|at| time_with_age(at, now)));
    fields
}

/// Wait for an operation.
#[derive(Debug, Args)]
pub struct Watch {
    /// Wait for the operation with this id
    id: String,
}

impl Run for Watch {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        let client = context.client()?;
        let mut interrupt = Interrupt::listen();
        let operation = client.operation(&self.id).await?;
        match wait(context, &client, operation, &mut interrupt, true).await? {
            WaitOutcome::Stopped(operation) => {
                print_outcome(context, &operation, &[])?;
                Ok(exit_of(&operation))
            }
            WaitOutcome::Detached => Ok(Exit::Interrupted),
        }
    }
}

/// The arguments of a command to an operation.
#[derive(Debug, Args)]
pub struct CommandArgs {
    /// Select the operation by id
    id: String,

    /// State the reason for the audit log; default: the name of the command
    #[arg(long, short = 'r', value_name = "TEXT")]
    reason: Option<String>,
}

impl CommandArgs {
    async fn send(self, context: &Context, command: Command) -> Result<Exit> {
        let reason = self.reason.unwrap_or_else(|| format!("{command} on the command line"));
        if reason.trim().is_empty() {
            return Err(Error::usage("the reason is empty"));
        }
        let client = context.client()?;
        let operation = client.command(&self.id, command, &reason).await?;
        let blockers = blockers(&client, &operation).await;
        print_outcome(context, &operation, &blockers)?;
        Ok(Exit::Ok)
    }
}

/// Prints the state of an operation on one line, its blockers and the next commands.
pub(super) fn print_outcome(context: &Context, operation: &Operation, blockers: &[Blocker]) -> Result<()> {
    let screen = &context.screen;
    match context.format() {
        Format::Table => {
            screen.line(&outcome_line(operation))?;
            blockers.iter().for_each(|blocker| screen.stderr_line(&blocker_line(operation, blocker)));
            screen.next_commands(&next(operation, blockers));
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
    let left_out = (!operation.excluded.is_empty()).then(|| excluded(&operation.excluded, &[]));
    line.plain(format!(
        ": {}{}{}{}",
        progress_counts(operation),
        took.unwrap_or_default(),
        note.unwrap_or_default(),
        left_out.map(|letters| format!("; excluded: {letters}")).unwrap_or_default()
    ))
}

/// Returns the next commands for an operation with these blockers.
pub(super) fn next(operation: &Operation, blockers: &[Blocker]) -> Vec<String> {
    let unblock = blockers.iter().filter_map(|blocker| blocker.resolve_with.clone());
    unblock.chain(next_of_state(operation)).collect()
}

/// Returns the next commands for an operation in this state.
fn next_of_state(operation: &Operation) -> Vec<String> {
    let id = &operation.id;
    let command = |verb: &str| format!("lazaret op {verb} {id} --reason TEXT");
    let watch = || format!("lazaret op watch {id}");
    let failed = || format!("lazaret op show {id} --outcome failed-again");
    match operation.state {
        // A second person runs the first of them.
        OperationState::AwaitingApproval => vec![command("approve"), watch()],
        OperationState::Scheduled | OperationState::Running => vec![watch()],
        OperationState::Paused if operation.failed_again > 0 => {
            vec![failed(), command("resume"), command("cancel")]
        }
        OperationState::Paused => vec![command("resume"), command("cancel")],
        _ if operation.failed_again > 0 => vec![failed()],
        _ => vec!["lazaret status".to_owned()],
    }
}

pub(super) fn tone(operation: &Operation) -> Tone {
    match operation.state {
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
        Column::new("ACTION").drop_priority(4),
        Column::new("STATE"),
        Column::new("LETTERS").right(),
        Column::new("SENT").right().drop_priority(3),
        Column::new("OK").right(),
        Column::new("FAILED AGAIN").right(),
        Column::new("SKIPPED").right().drop_priority(1),
        Column::new("AGE").right().drop_priority(2),
        Column::new("BY").min_width(6).drop_priority(5),
        Column::new("WHY").min_width(8).drop_priority(6),
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
        Column::new("PLACE").right().drop_priority(2),
        Column::new("LETTER"),
        Column::new("QUEUE").min_width(8).drop_priority(1),
        Column::new("SEQUENCE").min_width(8),
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
    use crate::fixtures::operation;

    #[test]
    fn a_done_operation_is_good_only_without_failures() {
        assert_eq!(tone(&operation(OperationState::Done, 0)), Tone::Good);
        assert_eq!(tone(&operation(OperationState::Done, 1)), Tone::Bad);
    }

    #[test]
    fn suggested_commands_that_change_something_include_the_reason() {
        assert_eq!(
            next(&operation(OperationState::Paused, 0), &[]),
            ["lazaret op resume op_31 --reason TEXT", "lazaret op cancel op_31 --reason TEXT"]
        );
    }
}
