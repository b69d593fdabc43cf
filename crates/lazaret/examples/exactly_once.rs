//! A handler whose effects happen exactly once: its writes and the mark of its message are one
//! transaction in PostgreSQL.
//!
//! Three payments are booked, the second at its second attempt. Then all of them are delivered again, as
//! after a crash that lost the position. No account changes a second time.
//!
//! ```sh
//! LAZARET_DSN=postgres://postgres@127.0.0.1:5432/postgres cargo run -p lazaret --features postgres --example exactly_once
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use lazaret::memory::{MemoryLog, MemoryStore};
use lazaret::postgres::driver::{self, Client, NoTls};
use lazaret::postgres::{ExactlyOnce, ExactlyOnceOptions, Tx};
use lazaret::prelude::*;

/// The key and the payload of each payment. The key is the account.
const PAYMENTS: [(&str, &str); 3] = [
    ("ada", r#"{"account": "ada", "cents": 1250}"#),
    ("bob", r#"{"account": "bob", "cents": 400}"#),
    ("ada", r#"{"account": "ada", "cents": 90}"#),
];

#[derive(serde::Deserialize)]
struct Payment {
    account: String,
    cents: i64,
}

async fn book(Json(payment): Json<Payment>, Attempt(attempt): Attempt, tx: Tx) -> Result<(), HandlerError> {
    let sql = "INSERT INTO accounts (name, cents) VALUES ($1, $2) \
               ON CONFLICT (name) DO UPDATE SET cents = accounts.cents + excluded.cents";
    tx.execute(sql, &[&payment.account, &payment.cents]).await?;
    if payment.account == "bob" && attempt == 1 {
        // The writes of the attempt are rolled back, and the failure is recorded.
        return Err(HandlerError::msg("the bank does not respond").reason(Reason::DEPENDENCY_UNAVAILABLE));
    }
    Ok(())
}

/// Runs a consumer over all payments from the first one, with an empty store.
async fn consume(once: &ExactlyOnce) -> Result<(), Box<dyn Error>> {
    let log = MemoryLog::new("payments", 1);
    for (account, payment) in PAYMENTS {
        log.push(0, account, payment);
    }
    log.close();
    let consumer = Consumer::builder("payments")
        .source(log.join())
        .store(Arc::new(MemoryStore::default()))
        .handler(book.layer(once.clone()))
        .retry(RetryPolicy { initial_delay: Duration::from_millis(10), ..RetryPolicy::default() })
        .until_idle()
        .build()?;
    let stats = consumer.run(CancellationToken::new()).await?;
    println!("read {}, handled {}", stats.read, stats.handled);
    Ok(())
}

async fn balances(client: &Client) -> Result<BTreeMap<String, i64>, driver::Error> {
    let rows = client.query("SELECT name, cents FROM accounts", &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Books the payments twice in this schema, and returns the balances after each time.
async fn run(dsn: &str, schema: &str) -> Result<[BTreeMap<String, i64>; 2], Box<dyn Error>> {
    let between = if dsn.contains('?') { '&' } else { '?' };
    let dsn = format!("{dsn}{between}options=-c%20search_path={schema}");
    let (client, connection) = driver::connect(&dsn, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute(&format!("DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}")).await?;
    client.batch_execute("CREATE TABLE accounts (name text PRIMARY KEY, cents bigint NOT NULL)").await?;
    let once = ExactlyOnce::connect(&dsn, "payments", ExactlyOnceOptions::default()).await?;
    consume(&once).await?;
    let first = balances(&client).await?;
    consume(&once).await?;
    let second = balances(&client).await?;
    client.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await?;
    Ok([first, second])
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let dsn = std::env::var("LAZARET_DSN").map_err(|_| "set LAZARET_DSN to a PostgreSQL database")?;
    let [first, second] = run(&dsn, "lazaret_example").await?;
    println!("balances: {first:?}, after all payments came again: {second:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn payments_that_come_again_are_booked_once() {
        let Ok(dsn) = std::env::var("LAZARET_TEST_POSTGRES") else {
            let must = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(
                !must,
                "LAZARET_TEST_POSTGRES is not set; `cargo xtask test` starts a server and sets it"
            );
            println!("not run: LAZARET_TEST_POSTGRES is not set");
            return;
        };
        let schema = format!("lzx_{}", std::process::id());
        let [first, second] = run(&dsn, &schema).await.unwrap();
        assert_eq!(first, [("ada".to_owned(), 1340), ("bob".to_owned(), 400)].into());
        assert_eq!(first, second);
    }
}
