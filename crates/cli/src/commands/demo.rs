//! `demo`: runs a guided demo without a server.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;
use lazaret_demo::{Error as DemoError, LiveOptions, LiveSummary, OpenLetter, Outcome};

use super::Run;
use crate::context::{Context, DEFAULT_URL};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::hints::quoted;
use crate::output::{Cell, Column, Format, Line, Table, Tone, count, csv_header, csv_row, plural};

/// The default duration without a terminal, in seconds.
const DEFAULT_SECONDS: u32 = 6;
/// The CSV columns of the outcome.
const CSV_COLUMNS: [&str; 10] = [
    "ok",
    "orders",
    "handled",
    "attempts",
    "failed-attempts",
    "retries",
    "deaths",
    "letters",
    "resolved",
    "seconds",
];

/// Run a guided demo: orders, retries, dead letters, a crash, a repair and a replay.
#[derive(Debug, Args)]
pub struct Demo {
    /// Run to the end without a terminal, verify the guarantees and print the outcome
    #[arg(long)]
    headless: bool,

    /// Send orders for N seconds, at least 400 in total; default: until you quit on a terminal, 6 elsewhere
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,

    /// Run as the worker process
    #[arg(long, hide = true, value_name = "FOLDER")]
    worker: Option<PathBuf>,
}

impl Run for Demo {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        if let Some(folder) = &self.worker {
            work(folder).await;
        }
        match context.chosen_format() {
            None if lazaret_tui::is_terminal() && !self.headless => self.show(context).await,
            format => self.run_headless(context, self.headless || format.is_some()).await,
        }
    }
}

/// Runs the worker and exits the process: the runtime would wait for the thread that reads standard input.
async fn work(folder: &std::path::Path) -> ! {
    let code = match lazaret_demo::run_worker(folder).await {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            1
        }
    };
    std::process::exit(code)
}

/// Returns the command line that starts this program as the worker.
fn worker() -> Result<Vec<OsString>> {
    let program = std::env::current_exe().map_err(|error| Error::io("cannot find this executable", error))?;
    Ok(vec![program.into(), "demo".into(), "--worker".into()])
}

/// Returns the name by which the user called this program.
fn command() -> String {
    let called = std::env::args().next();
    called.map_or_else(|| "lazaret".to_owned(), |called| quoted(&called))
}

impl Demo {
    /// Runs the demo on the terminal, controlled by keys.
    async fn show(&self, context: &Context) -> Result<Exit> {
        let options = LiveOptions {
            command: command(),
            is_default_address: context.global.url == DEFAULT_URL,
            color: context.screen.stdout_in_color(),
            seconds: self.seconds,
        };
        let live = lazaret_demo::run_live(worker()?, &options).await;
        let live = live.map_err(|error| Error::Other(error.to_string()))?;
        context.screen.info(&summary(&live));
        let next = ["demo --headless", "init", "doctor", "run"];
        context.screen.next_commands(&next.map(|words| format!("{} {words}", options.command)));
        Ok(Exit::Ok)
    }

    /// Runs the demo with log lines, and prints the outcome. The lines go to standard error when the outcome is data.
    async fn run_headless(&self, context: &Context, is_data: bool) -> Result<Exit> {
        let screen = context.screen.clone();
        let mut log = |line: &str| {
            if is_data {
                screen.info(line);
            } else {
                let _ = screen.line(&Line::of(line));
            }
        };
        let seconds = self.seconds.unwrap_or(DEFAULT_SECONDS);
        let outcome =
            lazaret_demo::run_headless(worker()?, seconds, &command(), &mut log).await.map_err(wrong);
        match outcome {
            Ok(outcome) => {
                print(context, &outcome)?;
                if context.format() == Format::Table {
                    context.screen.next_commands(
                        &["init", "doctor", "run"].map(|verb| format!("{} {verb}", command())),
                    );
                }
                Ok(if outcome.ok { Exit::Ok } else { Exit::Error })
            }
            Err(None) => Ok(Exit::Interrupted),
            Err(Some(error)) => Err(error),
        }
    }
}

/// Summarizes the demo in a sentence. The last orders may be unread.
fn summary(live: &LiveSummary) -> String {
    let (orders, handled) = (u64::from(live.orders), live.handled as u64);
    let unread = orders.saturating_sub(handled + live.open);
    let unread = if unread == 0 { String::new() } else { format!(", {} unread", count(unread)) };
    let open = plural(live.open, "open letter");
    let times = plural(u64::from(live.deaths), "time");
    format!(
        "{} sent, {} handled, {open}{unread}; the process crashed {times}",
        plural(orders, "order"),
        count(handled)
    )
}

/// Converts an error of the demo; `None` when the user interrupted it.
fn wrong(error: DemoError) -> Option<Error> {
    match error {
        DemoError::Interrupted => None,
        error => Some(Error::Other(error.to_string())),
    }
}

fn print(context: &Context, outcome: &Outcome) -> Result<()> {
    match context.format() {
        Format::Json | Format::Jsonl => context.screen.json(outcome),
        Format::Csv => {
            let value = serde_json::to_value(outcome).map_err(|error| Error::Other(error.to_string()))?;
            let row = csv_row(&CSV_COLUMNS, &value);
            context.screen.raw(format!("{}\n{row}\n", csv_header(&CSV_COLUMNS)).as_bytes())
        }
        Format::Table => print_tables(context, outcome),
    }
}

fn print_tables(context: &Context, outcome: &Outcome) -> Result<()> {
    context.screen.table(&counts(outcome))?;
    context.screen.line(&Line::new())?;
    context.screen.table(&open_letters(outcome))?;
    context.screen.line(&Line::new())?;
    context.screen.table(&guarantees(outcome))
}

fn counts(outcome: &Outcome) -> Table {
    let mut counts = Table::new(&[Column::new("METRIC"), Column::new("COUNT").right()]);
    for (metric, value) in [
        ("orders sent", outcome.orders as u64),
        ("orders handled", outcome.handled as u64),
        ("handler calls", outcome.attempts),
        ("failed handler calls", outcome.failed_attempts),
        ("retries and replays", outcome.retries),
        ("process crashes", u64::from(outcome.deaths)),
        ("letters stored", outcome.letters as u64),
        ("letters resolved", outcome.resolved as u64),
        ("letters open", outcome.open.len() as u64),
    ] {
        counts.row(vec![Cell::new(metric), Cell::new(count(value))]);
    }
    counts
}

/// Lists each open letter that failed, with the number of letters that wait behind it.
fn open_letters(outcome: &Outcome) -> Table {
    let columns = [
        Column::new("OPEN LETTER"),
        Column::new("CUSTOMER"),
        Column::new("STATE"),
        Column::new("BEHIND").right(),
        Column::new("REASON").min_width(8),
    ];
    let mut table = Table::new(&columns);
    for letter in outcome.open.iter().filter(|letter| letter.reason.is_some()) {
        let waits = |other: &&OpenLetter| other.reason.is_none() && other.customer == letter.customer;
        let behind = outcome.open.iter().filter(waits).count() as u64;
        table.row(vec![
            Cell::new(&letter.id),
            Cell::new(&letter.customer),
            Cell::new(&letter.state).tone(Tone::Bad),
            Cell::new(count(behind)),
            Cell::or_dash(letter.reason.as_deref()),
        ]);
    }
    table
}

fn guarantees(outcome: &Outcome) -> Table {
    let columns = [
        Column::new("ID"),
        Column::new("OK"),
        Column::new("GUARANTEE").min_width(8).drop_priority(1),
        Column::new("EVIDENCE").min_width(20),
    ];
    let mut table = Table::new(&columns);
    for check in &outcome.checks {
        let (word, tone) = if check.ok { ("yes", Tone::Good) } else { ("NO", Tone::Bad) };
        table.row(vec![
            Cell::new(check.id),
            Cell::new(word).tone(tone),
            Cell::new(check.promise),
            Cell::new(&check.seen),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_orders_are_handled_open_or_unread() {
        let live = LiveSummary { orders: 1182, handled: 1137, open: 38, deaths: 1 };
        assert_eq!(
            summary(&live),
            "1,182 orders sent, 1,137 handled, 38 open letters, 7 unread; the process crashed 1 time"
        );
        let live = LiveSummary { orders: 1, handled: 0, open: 1, deaths: 0 };
        assert_eq!(summary(&live), "1 order sent, 0 handled, 1 open letter; the process crashed 0 times");
    }
}
