//! `demo`: the whole story in one command, without a server.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;
use lazaret_demo::{Error as DemoError, OpenLetter, Outcome, Seen, Show};

use super::Run;
use crate::context::{Context, DEFAULT_URL};
use crate::error::{Error, Result};
use crate::exit::Exit;
use crate::hints::quoted;
use crate::output::{Cell, Column, Format, Line, Table, Tone, count, csv_header, csv_row, plural};

/// How long orders are sent when nobody says it and nobody is there to end it.
const SECONDS: u32 = 6;
/// What of an outcome fits a row.
const NUMBERS: [&str; 10] = [
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

/// Show the whole story: orders, retries, dead letters, a crash, a repair and a replay.
#[derive(Debug, Args)]
pub struct Demo {
    /// Play the story to its end without a terminal, check what it leaves behind, and print the outcome
    #[arg(long)]
    headless: bool,

    /// How many seconds orders are sent; on a terminal until you quit unless said otherwise, elsewhere for 6. The story takes 400
    /// orders: in a shorter time they come faster
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: Option<u32>,

    /// Be the process with the consumer
    #[arg(long, hide = true, value_name = "FOLDER")]
    worker: Option<PathBuf>,
}

impl Run for Demo {
    async fn run(self, context: &mut Context) -> Result<Exit> {
        if let Some(folder) = &self.worker {
            work(folder).await;
        }
        match context.chosen_format() {
            None if lazaret_demo::is_terminal() && !self.headless => self.show(context).await,
            format => self.tell(context, self.headless || format.is_some()).await,
        }
    }
}

/// Ends the process itself: a runtime would wait for the thread that reads standard input.
async fn work(folder: &std::path::Path) -> ! {
    let code = match lazaret_demo::work(folder).await {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            1
        }
    };
    std::process::exit(code)
}

/// The command line that makes this program the worker.
fn worker() -> Result<Vec<OsString>> {
    let program =
        std::env::current_exe().map_err(|error| Error::io("this program cannot be found", error))?;
    Ok(vec![program.into(), "demo".into(), "--worker".into()])
}

/// How the viewer calls this program.
fn command() -> String {
    let called = std::env::args().next();
    called.map_or_else(|| "lazaret".to_owned(), |called| quoted(&called))
}

impl Demo {
    /// Shows it on the terminal, with keys.
    async fn show(&self, context: &Context) -> Result<Exit> {
        let show = Show {
            command: command(),
            usual_address: context.global.url == DEFAULT_URL,
            color: context.screen.is_in_color(),
            seconds: self.seconds,
        };
        let seen =
            lazaret_demo::live(worker()?, &show).await.map_err(|error| Error::Other(error.to_string()))?;
        context.screen.say(&sum(&seen));
        let next = ["demo --headless", "init", "doctor", "run"];
        context.screen.next_of(&next.map(|words| format!("{} {words}", show.command)));
        Ok(Exit::Ok)
    }

    /// Tells the story line by line, and prints the outcome. Where only the outcome is data, the story is talk.
    async fn tell(&self, context: &Context, is_data: bool) -> Result<Exit> {
        let screen = context.screen.clone();
        let mut tell = |line: &str| {
            if is_data {
                screen.say(line);
            } else {
                let _ = screen.line(&Line::of(line));
            }
        };
        let seconds = self.seconds.unwrap_or(SECONDS);
        let outcome = lazaret_demo::told(worker()?, seconds, &command(), &mut tell).await.map_err(wrong);
        match outcome {
            Ok(outcome) => {
                print(context, &outcome)?;
                if context.format() == Format::Table {
                    context
                        .screen
                        .next_of(&["init", "doctor", "run"].map(|verb| format!("{} {verb}", command())));
                }
                Ok(if outcome.ok { Exit::Ok } else { Exit::Error })
            }
            Err(None) => Ok(Exit::Interrupted),
            Err(Some(error)) => Err(error),
        }
    }
}

/// What there was to see, in a sentence. What was sent last may not be read yet.
fn sum(seen: &Seen) -> String {
    let (orders, handled) = (u64::from(seen.orders), seen.handled as u64);
    let unread = orders.saturating_sub(handled + seen.open);
    let unread = if unread == 0 { String::new() } else { format!(", {} not read yet", count(unread)) };
    let open = plural(seen.open, "open letter");
    let times = plural(u64::from(seen.deaths), "time");
    format!(
        "{} sent, {} handled, {open}{unread}; the process died {times}",
        plural(orders, "order"),
        count(handled)
    )
}

/// What went wrong; `None` when somebody wanted it to end.
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
            let row = csv_row(&NUMBERS, &value);
            context.screen.raw(format!("{}\n{row}\n", csv_header(&NUMBERS)).as_bytes())
        }
        Format::Table => print_tables(context, outcome),
    }
}

fn print_tables(context: &Context, outcome: &Outcome) -> Result<()> {
    context.screen.table(&facts(outcome))?;
    context.screen.line(&Line::new())?;
    context.screen.table(&left(outcome))?;
    context.screen.line(&Line::new())?;
    context.screen.table(&promises(outcome))
}

fn facts(outcome: &Outcome) -> Table {
    let mut facts = Table::new(&[Column::new("WHAT"), Column::new("HOW MANY").right()]);
    for (what, how_many) in [
        ("orders sent", outcome.orders as u64),
        ("orders handled", outcome.handled as u64),
        ("calls of the handler", outcome.attempts),
        ("calls that failed", outcome.failed_attempts),
        ("retries and replays", outcome.retries),
        ("deaths of the process", u64::from(outcome.deaths)),
        ("orders that became letters", outcome.letters as u64),
        ("letters handled at last", outcome.resolved as u64),
        ("letters left", outcome.open.len() as u64),
    ] {
        facts.row(vec![Cell::new(what), Cell::new(count(how_many))]);
    }
    facts
}

/// What is left: each order that failed, and how many of the same customer wait behind it.
fn left(outcome: &Outcome) -> Table {
    let columns = [
        Column::new("LEFT"),
        Column::new("CUSTOMER"),
        Column::new("STATE"),
        Column::new("BEHIND").right(),
        Column::new("REASON").cut(8),
    ];
    let mut left = Table::new(&columns);
    for letter in outcome.open.iter().filter(|letter| letter.reason.is_some()) {
        let waits = |other: &&OpenLetter| other.reason.is_none() && other.customer == letter.customer;
        let behind = outcome.open.iter().filter(waits).count() as u64;
        left.row(vec![
            Cell::new(&letter.id),
            Cell::new(&letter.customer),
            Cell::new(&letter.state).tone(Tone::Bad),
            Cell::new(count(behind)),
            Cell::or_dash(letter.reason.as_deref()),
        ]);
    }
    left
}

fn promises(outcome: &Outcome) -> Table {
    let columns = [
        Column::new("PROMISE"),
        Column::new("KEPT"),
        Column::new("WHAT").cut(8).drop(1),
        Column::new("SEEN").cut(20),
    ];
    let mut promises = Table::new(&columns);
    for check in &outcome.checks {
        let (word, tone) = if check.ok { ("yes", Tone::Good) } else { ("NO", Tone::Bad) };
        promises.row(vec![
            Cell::new(check.id),
            Cell::new(word).tone(tone),
            Cell::new(check.promise),
            Cell::new(&check.seen),
        ]);
    }
    promises
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_handled_or_a_letter_or_not_read_yet() {
        let seen = Seen { orders: 1182, handled: 1137, open: 38, deaths: 1 };
        assert_eq!(
            sum(&seen),
            "1,182 orders sent, 1,137 handled, 38 open letters, 7 not read yet; the process died 1 time"
        );
        let seen = Seen { orders: 1, handled: 0, open: 1, deaths: 0 };
        assert_eq!(sum(&seen), "1 order sent, 0 handled, 1 open letter; the process died 0 times");
    }
}
