//! Due letters drained by 1 and by 4 processes on one database.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use lazaret_core::store::LetterStore;

use super::BENCH;
use super::due::due_letters;
use super::server::{OwnStore, Server, open};
use crate::Scale;
use crate::core::rate;
use crate::fleet::{Member, drain, wait_for_line};
use crate::letters::{fill, queue};
use crate::table::{Bar, Compared, ROUNDS, Row, spread};

/// The argument that starts this program as one process of a fleet.
pub(crate) const CHILD: &str = "mongodb-fleet-of";

const PROCESSES: usize = 4;
/// Each in a sequence of its own.
const LETTERS: usize = 20_000;
/// The poll interval for the end of a run.
const LOOK: Duration = Duration::from_millis(20);

pub(super) async fn run(scale: Scale, server: &Server) -> Result<Vec<Row>, String> {
    let letters = scale.count(LETTERS);
    let (mut one, mut many) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        one.push(measure(server, 1, letters).await?);
        many.push(measure(server, PROCESSES, letters).await?);
    }
    let name = format!("fleet/due letters drained by {PROCESSES} processes, beside one");
    let note = format!("{ROUNDS} rounds; the ratios lie between {}", spread(&many, &one));
    Ok(vec![
        Row::compared(BENCH, name, "letters/s", &Compared::new(&many, &one))
            .with_bar(Bar::RatioAtLeast(1.5))
            .with_note(note),
    ])
}

/// Measures letters per second of this many processes, from the moment when all are ready.
async fn measure(server: &Server, processes: usize, letters: usize) -> Result<f64, String> {
    let OwnStore { store, collection } = server.store().await;
    fill(&*store, due_letters(letters)).await;
    let arguments = [CHILD, &server.uri, server.database.name(), &collection];
    let mut members: Vec<Member> =
        (0..processes).map(|_| Member::start(&arguments)).collect::<Result<_, _>>()?;
    for member in &mut members {
        member.hear("ready")?;
    }
    let started = Instant::now();
    for member in &mut members {
        member.say("go")?;
    }
    // A leased sequence is due again at the end of its lease, so none is left only when all are closed. This costs less than counting.
    while store.next_due(&queue()).await.map_err(|error| error.to_string())?.is_some() {
        tokio::time::sleep(LOOK).await;
    }
    let took = started.elapsed();
    for member in members {
        member.end()?;
    }
    let left = store.counts(&queue()).await.map_err(|error| error.to_string())?.open();
    assert_eq!(left, 0, "every letter is settled");
    Ok(rate(letters, took))
}

/// Runs as one process of a fleet: says that it is ready, and works when it is told to, until its input is closed.
pub(crate) async fn child(mut words: impl Iterator<Item = String>) -> ExitCode {
    let (Some(uri), Some(database), Some(collection)) = (words.next(), words.next(), words.next()) else {
        return ExitCode::from(2);
    };
    let store = open(&uri, &database, collection).await;
    store.counts(&queue()).await.expect("the store answers");
    println!("ready");
    wait_for_line().await;
    drain(&store).await;
    ExitCode::SUCCESS
}
