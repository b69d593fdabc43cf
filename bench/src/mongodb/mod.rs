//! The group `mongodb`: the change stream source against a bare loop of the driver, the store against bare `insert_many`, and the store on
//! two shards against one.
//!
//! The server runs beside this process on the same cores, so its share is in every figure. Each round has its own collections,
//! which are dropped when it ends.

mod events;
mod letters;
mod server;
mod shards;

use std::time::Instant;

use crate::Scale;
use crate::table::Row;
use server::Server;

const BENCH: &str = "mongodb";

/// The benchmarks of the group, in order.
pub(crate) const NAMES: [&str; 3] = ["events", "letters", "shards"];

/// Runs every benchmark of the group, or only the given one.
pub(crate) async fn run(scale: Scale, only: Option<&str>) -> Result<Vec<Row>, String> {
    let server = Server::find().await?;
    let mut rows = Vec::new();
    for name in NAMES.into_iter().filter(|name| only.is_none_or(|only| only == *name)) {
        eprintln!("running {name}");
        let started = Instant::now();
        rows.extend(match name {
            "events" => events::run(scale, &server).await,
            "letters" => letters::run(scale, &server).await,
            "shards" => shards::run(scale).await,
            _ => unreachable!("every name has its benchmark"),
        });
        eprintln!("{name} took {:.0} s", started.elapsed().as_secs_f64());
    }
    server.clean_up().await;
    Ok(rows)
}
