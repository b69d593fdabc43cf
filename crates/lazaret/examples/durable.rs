//! A consumer that survives crashes: a file of events, a store in one file, and a flight recorder.
//!
//! Run it twice. The first run handles three orders and keeps two dead letters; the second replays one
//! of them as an operation and lists the open ones.
//!
//! ```sh
//! cargo run -p lazaret --features sqlite,file,flight-recorder --example durable
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lazaret::file::FileSource;
use lazaret::flight::MappedRecorder;
use lazaret::prelude::*;
use lazaret::query::Query;
use lazaret::sqlite::SqliteStore;
use lazaret::store::{Action, GroupsRequest, Operations, PlanRequest, RolloutPolicy, Selection, Triage};

const EVENTS: &str = r#"{"id": "e-1", "key": "ada", "payload": {"cents": 1250}}
{"id": "e-2", "key": "bob", "payload": {"cents": -1}}
{"id": "e-3", "key": "bob", "payload": {"cents": 400}}
this line is not JSON
{"id": "e-5", "key": "cy", "payload": {"cents": 90}}
"#;

#[derive(serde::Deserialize)]
struct Order {
    cents: i64,
}

async fn on_order(Json(order): Json<Order>, letter: Option<StoredLetter>) -> Result<(), HandlerError> {
    // The bug: refunds are rejected. For a replay it counts as fixed.
    if order.cents < 0 && letter.is_none() {
        return Err(HandlerError::msg("a negative total").reason(Reason::DOMAIN_INVALID));
    }
    println!("handled an order of {} cents", order.cents);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder =
        std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from).join("lazaret-durable");
    std::fs::create_dir_all(&folder)?;
    let events = folder.join("events.jsonl");
    if !events.exists() {
        std::fs::write(&events, EVENTS)?;
    }

    let store = Arc::new(SqliteStore::open(folder.join("lazaret.db"), Default::default())?);
    let recorder = MappedRecorder::open(folder.join("shop.flight"), Default::default())?;
    let source = FileSource::open(&events, store.clone(), "shop", Default::default()).await?;
    let consumer = Consumer::builder("shop")
        .source(source)
        .store(store.clone())
        .handler(on_order)
        .flight_recorder(recorder)
        .until_idle()
        .build()?;

    // Dead letters of an earlier run are replayed during this one.
    let me = Actor::new("example", "library", "bug fixed");
    let request = PlanRequest {
        action: Action::Retry,
        selection: Selection::Query(Query::parse("reason:DOMAIN_INVALID")?),
        valid_for: Duration::from_secs(60),
        max_letters: 1000,
    };
    let plan = store.freeze(&request, &me).await?;
    if plan.letters > 0 {
        let operation = store.begin(plan.id, &RolloutPolicy::default(), &me).await?;
        println!("{} replays {} letters", operation.id, operation.letters);
    }

    let stats = consumer.run(CancellationToken::new()).await?;
    println!("read {}, handled {}, letters resolved {}", stats.read, stats.handled, stats.resolved);
    for group in store.groups(&GroupsRequest { limit: 10, ..Default::default() }).await?.groups {
        let open = group.counts.open();
        println!("{}: {open} open, {} behind: {}", group.reason, group.blocked_behind, group.message);
    }
    // After this, the single file contains everything and can be copied.
    store.close().await?;
    println!("the files are in {}", folder.display());
    Ok(())
}
