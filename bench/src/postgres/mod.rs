//! The group `postgres`: letters in PostgreSQL, against bare statements and against those of Axon's JDBC queue.
//!
//! The server runs beside this process on the same cores, so its share is in every figure. Each run has its own schema, which is
//! dropped when it ends.

mod axon;
mod churn;
mod drain;
mod exactly_once;
pub(crate) mod fleet;
mod growth;
mod hand_off;
mod server;

use std::time::{Duration, Instant};

use crate::Scale;
use crate::due::{self, Schedule};
use crate::letters::fill;
use crate::table::Row;
use server::Server;

const BENCH: &str = "postgres";

/// The benchmarks of the group, in order.
pub(crate) const NAMES: [&str; 7] = ["hand-off", "drain", "growth", "fleet", "due", "exactly-once", "churn"];

/// Runs every benchmark of the group, or only the given one.
pub(crate) async fn run(scale: Scale, only: Option<&str>) -> Result<Vec<Row>, String> {
    let server = Server::find().await?;
    let mut rows = Vec::new();
    for name in NAMES.into_iter().filter(|name| only.is_none_or(|only| only == *name)) {
        eprintln!("running {name}");
        let started = Instant::now();
        rows.extend(match name {
            "hand-off" => hand_off::run(scale, &server).await,
            "drain" => drain::run(scale, &server).await,
            "growth" => growth::run(scale, &server).await,
            "fleet" => fleet::run(scale, &server).await?,
            "due" => retries_due(scale, &server).await,
            "exactly-once" => exactly_once::run(scale, &server).await,
            "churn" => churn::run(scale, &server).await,
            _ => unreachable!("every name has its benchmark"),
        });
        eprintln!("{name} took {:.0} s", started.elapsed().as_secs_f64());
    }
    Ok(rows)
}

/// Measures the lateness of many retries that are due at once.
async fn retries_due(scale: Scale, server: &Server) -> Vec<Row> {
    let schema = server.schema().await;
    let store = schema.store().await;
    let schedule = Schedule::after(Duration::from_secs(60), scale);
    fill(&*store, schedule.letters()).await;
    let late = schedule.run(&store).await;
    schema.drop(store).await;
    due::rows(BENCH, &[late], None)
}
