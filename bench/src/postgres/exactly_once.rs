//! A handler whose effects happen exactly once, against the same handler with a bare transaction.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::{Manager, Pool};
use lazaret_core::HandlerError;
use lazaret_core::handler::{Handler, Key};
use lazaret_engine::Options;
use lazaret_memory::MemoryStore;
use lazaret_store_postgres::driver::{Client, NoTls};
use lazaret_store_postgres::{ExactlyOnce, ExactlyOnceOptions, Tx};
use tokio_util::sync::CancellationToken;

use super::BENCH;
use super::server::{Schema, Server};
use crate::Scale;
use crate::consumer::consumer;
use crate::core::{options, rate};
use crate::source::Plan;
use crate::table::{Bar, Compared, ROUNDS, Row, spread};

const MESSAGES: usize = 10_000;
/// The connections of both, as in the default options, and the attempts at once.
const CONNECTIONS: usize = 16;
const INSERT: &str = "INSERT INTO effects (key) VALUES ($1)";

pub(super) async fn run(scale: Scale, server: &Server) -> Vec<Row> {
    let messages = scale.count(MESSAGES);
    let (mut once, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bare.push(rate(messages, bare_run(server, messages).await));
        once.push(rate(messages, once_run(server, messages).await));
    }
    let name = "exactly-once/a handler that writes one row, beside the same with a bare transaction";
    vec![
        Row::compared(BENCH, name, "msg/s", &Compared::new(&once, &bare))
            .with_bar(Bar::RatioAtLeast(0.7))
            .with_note(format!("{ROUNDS} rounds; the ratios lie between {}", spread(&once, &bare))),
    ]
}

async fn effects(server: &Server) -> (Schema<'_>, Client) {
    let schema = server.schema().await;
    let client = schema.client().await;
    let table =
        "CREATE TABLE effects (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key bytea NOT NULL)";
    client.batch_execute(table).await.expect("the server creates tables");
    (schema, client)
}

async fn once_run(server: &Server, messages: usize) -> Duration {
    let (schema, client) = effects(server).await;
    let options = ExactlyOnceOptions { max_connections: CONNECTIONS, ..ExactlyOnceOptions::default() };
    let once = ExactlyOnce::connect(&schema.dsn(), "bench", options).await.expect("the server takes marks");
    let handler = async |Key(key): Key, tx: Tx| -> Result<(), HandlerError> {
        tx.execute(INSERT, &[&key.as_deref()]).await?;
        Ok(())
    };
    let took = consume(messages, handler.layer(once)).await;
    check(schema, client, messages).await;
    took
}

async fn bare_run(server: &Server, messages: usize) -> Duration {
    let (schema, client) = effects(server).await;
    let config = schema.dsn().parse().expect("the DSN was used before");
    let pool = Pool::builder(Manager::new(config, NoTls)).max_size(CONNECTIONS).build();
    let pool = pool.expect("the options of the pool are valid");
    let handler = move |Key(key): Key| {
        let pool = pool.clone();
        async move {
            let mut client = pool.get().await?;
            let tx = client.transaction().await?;
            tx.execute(INSERT, &[&key.as_deref()]).await?;
            tx.commit().await?;
            Ok::<(), HandlerError>(())
        }
    };
    let took = consume(messages, handler).await;
    check(schema, client, messages).await;
    took
}

async fn consume<A: 'static>(messages: usize, handler: impl Handler<A>) -> Duration {
    let plan = Plan::distinct(messages as u32, 0.0);
    let run = Options { concurrency: CONNECTIONS, ..options() };
    let consumer = consumer(&plan, &Arc::new(MemoryStore::default()), run, handler);
    let started = Instant::now();
    let run = tokio::spawn(consumer.run(CancellationToken::new()));
    let stats = run.await.expect("the engine does not panic").expect("the engine ends without an error");
    assert_eq!(stats.handled, messages as u64, "every message is handled");
    started.elapsed()
}

/// Checks that every message had its effect, and drops the schema.
async fn check(schema: Schema<'_>, client: Client, messages: usize) {
    let rows = client.query_one("SELECT count(*) FROM effects", &[]).await.expect("the server answers");
    assert_eq!(rows.get::<_, i64>(0), messages as i64, "every message has one effect");
    drop(client);
    schema.clean_up().await;
}
