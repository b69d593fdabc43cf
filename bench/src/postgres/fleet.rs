//! The throughput of 1, 2 and 4 processes on one database.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use lazaret_core::store::LetterStore;
use lazaret_core::{Letter, LetterState, Timestamp};

use super::BENCH;
use super::server::{Schema, Server, store};
use crate::Scale;
use crate::core::rate;
use crate::fleet::{Member, drain, wait_for_line};
use crate::letters::{Mould, fill, open_with, put, queue};
use crate::table::{Bar, Compared, ROUNDS, Row, spread};

/// The argument that starts this program as one process of a fleet.
pub(crate) const CHILD: &str = "postgres-fleet-of";

const PROCESSES: [usize; 3] = [1, 2, 4];
const HANDED_OFF: usize = 32_000;
const DRAINED: usize = 20_000;
const DEPTH: usize = 10;
const PAYLOAD: usize = 1024;
/// The letters of a call.
const IN_FLIGHT: usize = 64;

pub(super) async fn run(scale: Scale, server: &Server) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for (work, letters) in [("hand-off", scale.count(HANDED_OFF)), ("drain", scale.count(DRAINED))] {
        let mut rates = PROCESSES.map(|_| Vec::new());
        for _ in 0..ROUNDS {
            for (processes, rates) in PROCESSES.iter().zip(&mut rates) {
                rates.push(measure(server, work, *processes, letters).await?);
            }
        }
        for (processes, each) in PROCESSES.iter().zip(&rates) {
            let name = format!("fleet/{work} by {processes} processes, beside one");
            let row = Row::compared(BENCH, name, "letters/s", &Compared::new(each, &rates[0]));
            rows.push(if *processes == 1 {
                row
            } else {
                let note = format!("{ROUNDS} rounds; the ratios lie between {}", spread(each, &rates[0]));
                // Equal, but for the noise of a machine whose cores the processes share with the server.
                row.with_bar(Bar::RatioAtLeast(0.95)).with_note(note)
            });
        }
    }
    Ok(rows)
}

/// Measures letters per second of this many processes, from the moment when all are ready.
async fn measure(server: &Server, work: &str, processes: usize, letters: usize) -> Result<f64, String> {
    let schema = server.schema().await;
    let own = schema.store().await;
    if work == "drain" {
        fill(&*own, due(letters)).await;
        schema.vacuum().await;
    }
    let mut members: Vec<Member> = (0..processes)
        .map(|number| start(&schema, work, number, letters / processes))
        .collect::<Result<_, _>>()?;
    for member in &mut members {
        member.hear("ready")?;
    }
    let started = Instant::now();
    for member in &mut members {
        member.say("go")?;
    }
    if work == "drain" {
        while own.counts(&queue()).await.map_err(|error| error.to_string())?.open() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    } else {
        for member in &mut members {
            member.hear("done")?;
        }
    }
    let took = started.elapsed();
    for member in members {
        member.end()?;
    }
    schema.drop(own).await;
    Ok(rate(letters / processes * processes, took))
}

/// Letters that are due now.
fn due(letters: usize) -> impl Iterator<Item = Letter> {
    let (mould, sequences, now) = (Mould::new(PAYLOAD), letters / DEPTH, Timestamp::now());
    (0..letters).map(move |number| {
        let state = if number < sequences { LetterState::Retrying } else { LetterState::Waiting };
        let mut letter = mould.letter(number, &format!("order-{}", number % sequences), state);
        letter.due_at = (state == LetterState::Retrying).then_some(now);
        letter
    })
}

/// Starts a process that works on this schema.
fn start(schema: &Schema<'_>, work: &str, number: usize, letters: usize) -> Result<Member, String> {
    let (number, letters) = (number.to_string(), letters.to_string());
    Member::start(&[CHILD, schema.server_dsn(), &schema.name, work, &number, &letters])
}

/// Runs as one process of a fleet: says that it is ready, and works when it is told to, until its input is closed.
pub(crate) async fn child(mut words: impl Iterator<Item = String>) -> ExitCode {
    let (Some(dsn), Some(schema), Some(work)) = (words.next(), words.next(), words.next()) else {
        return ExitCode::from(2);
    };
    let mut number = || words.next().and_then(|word| word.parse::<usize>().ok());
    let (Some(member), Some(letters)) = (number(), number()) else { return ExitCode::from(2) };
    let store = store(&dsn, &schema).await;
    store.counts(&queue()).await.expect("the store answers");
    println!("ready");
    wait_for_line().await;
    if work == "hand-off" {
        let mould = Mould::new(PAYLOAD);
        for call in 0..letters / IN_FLIGHT {
            let items = (0..IN_FLIGHT).map(|item| {
                let number = (member * letters) + call * IN_FLIGHT + item;
                open_with(mould.letter(number, &format!("order-{number}"), LetterState::Dead))
            });
            put(&*store, items.collect()).await;
        }
        println!("done");
        wait_for_line().await;
    } else {
        drain(&store).await;
    }
    ExitCode::SUCCESS
}
