//! The group `mongodb`: the change stream source against a bare loop of the driver, the store against bare `insert_many` and bare updates,
//! operations against hand-offs, several processes against one, and the store on two shards against one.
//!
//! The server runs beside this process on the same cores, so its share is in every figure. Each round has its own collections,
//! which are dropped when the group ends. The wire server of the tests runs two of the benchmarks; the benchmarks of claims need a MongoDB.

mod due;
mod events;
pub(crate) mod fleet;
mod letters;
mod replay;
mod server;
mod shards;

use std::time::Instant;

use crate::Scale;
use crate::table::Row;
use server::Server;

const BENCH: &str = "mongodb";

const SHARDS: &str = "shards";

/// The benchmarks of the group, in order.
pub(crate) const NAMES: [&str; 6] = ["events", "letters", "due", "replay", "fleet", SHARDS];

/// Those that the wire server of the tests cannot run: it has no secondary indexes, so each claim reads every sequence and each step of an
/// operation every letter.
const NEED_INDEXES: [&str; 3] = ["due", "replay", "fleet"];

/// Runs every benchmark of the group, or only the given one.
pub(crate) async fn run(scale: Scale, only: Option<&str>) -> Result<Vec<Row>, String> {
    let names: Vec<&str> = NAMES.into_iter().filter(|name| only.is_none_or(|only| only == *name)).collect();
    // That of shards starts its own servers.
    let server = match names.as_slice() {
        [SHARDS] => None,
        _ => Some(Server::find().await?),
    };
    let mut rows = Vec::new();
    for name in names {
        eprintln!("running {name}");
        let started = Instant::now();
        rows.extend(match &server {
            Some(server) if name != SHARDS => run_on(server, name, scale).await?,
            _ => shards::run(scale).await,
        });
        eprintln!("{name} took {:.0} s", started.elapsed().as_secs_f64());
    }
    if let Some(server) = server {
        server.clean_up().await;
    }
    Ok(rows)
}

/// Runs a benchmark on this server, unless it cannot run there.
async fn run_on(server: &Server, name: &str, scale: Scale) -> Result<Vec<Row>, String> {
    if server.is_wire_server && NEED_INDEXES.contains(&name) {
        println!(
            "not run: the benchmark {name}; the wire server of the tests has no secondary indexes, set LAZARET_TEST_MONGODB to a replica set"
        );
        return Ok(Vec::new());
    }
    Ok(match name {
        "events" => events::run(scale, server).await,
        "letters" => letters::run(scale, server).await,
        "due" => due::run(scale, server).await,
        "replay" => replay::run(scale, server).await,
        "fleet" => fleet::run(scale, server).await?,
        _ => unreachable!("every name has its benchmark"),
    })
}
