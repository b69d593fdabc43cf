//! A consumer whose process is killed around the commit of its handler. Each message has one effect,
//! even if it becomes a letter.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lazaret_core::handler::{Delivery, Handler, Next, Text, layer_fn};
use lazaret_core::policy::{RetryPolicy, Strategy};
use lazaret_core::query::Query;
use lazaret_core::store::Triage;
use lazaret_core::{HandlerError, Letter};
use lazaret_engine::{Consumer, Options};
use lazaret_source_postgres::{OutboxOptions, OutboxSource};
use lazaret_store_postgres::{ExactlyOnce, ExactlyOnceOptions, Tx};
use lazaret_store_sqlite::{Options as StoreOptions, SqliteStore};
use tokio_util::sync::CancellationToken;

use crate::support::{LONG, Shop, server};

/// The environment variable that makes a process of this test the consumer. It holds all that the
/// consumer needs: `dsn schema folder`.
const CONSUMER: &str = "LAZARET_EXACTLY_ONCE_CONSUMER";
const MESSAGES: i64 = 40;

/// A process that does not outlive the test.
struct Process(Child);

impl Process {
    fn start(shop: &Shop, folder: &Path) -> Self {
        let arguments = format!("{} {} {}", shop.dsn, shop.schema, folder.display());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--ignored", "--exact", "exactly_once::consumer", "--nocapture"])
            .env(CONSUMER, arguments);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns `true` once per name, across all processes.
fn is_first(folder: &Path, name: &str) -> bool {
    std::fs::File::create_new(folder.join(name)).is_ok()
}

/// Ends this process with SIGKILL.
fn kill_self() {
    Command::new("kill").args(["-9", &std::process::id().to_string()]).status().unwrap();
    std::thread::sleep(LONG);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test below as a process"]
async fn consumer() {
    let arguments = std::env::var(CONSUMER).expect("run by the test");
    let [dsn, schema, folder] = arguments.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let folder = Path::new(folder).to_owned();
    let source = OutboxOptions {
        poll: Duration::from_millis(20),
        batch_rows: 4,
        ..OutboxOptions::new(dsn, format!("{schema}.outbox"))
    };
    let store = Arc::new(SqliteStore::open(folder.join("lazaret.db"), StoreOptions::default()).unwrap());
    let options = ExactlyOnceOptions { table: format!("{schema}.marks"), ..ExactlyOnceOptions::default() };
    let once = ExactlyOnce::connect(dsn, "orders", options).await.unwrap();
    let effect = format!("INSERT INTO {schema}.effects (number) VALUES ($1)");
    let inside = folder.clone();
    let handler = move |Text(text): Text, tx: Tx| {
        let (effect, folder) = (effect.clone(), inside.clone());
        async move {
            let number: i64 = text.parse().unwrap();
            tx.execute(&effect, &[&number]).await?;
            match number % 10 {
                // The message fails once, and succeeds as a letter.
                3 | 7 if is_first(&folder, &format!("failed-{number}")) => {
                    return Err(HandlerError::msg("no"));
                }
                5 if is_first(&folder, &format!("before-{number}")) => kill_self(),
                _ => {}
            }
            Ok::<_, HandlerError>(())
        }
    };
    let outside = folder.clone();
    // This runs outside the transaction, which is committed while the message is not settled yet.
    let killer = layer_fn(move |delivery: Delivery, next: Next| {
        let folder = outside.clone();
        async move {
            let number = String::from_utf8(delivery.message().payload.clone().unwrap().into()).unwrap();
            let outcome = next.run(delivery).await;
            let is_chosen = number.ends_with('1') || number.ends_with('3');
            if outcome.is_ok() && is_chosen && is_first(&folder, &format!("after-{number}")) {
                kill_self();
            }
            outcome
        }
    });
    let retry = RetryPolicy {
        strategy: Strategy::Ordered,
        // A letter may be in flight during several kills, which must not exhaust its attempts.
        max_attempts: 1000,
        max_crashes: 0,
        initial_delay: Duration::from_millis(20),
        hold: Duration::ZERO,
        ..RetryPolicy::default()
    };
    let consumer = Consumer::builder("orders")
        .source(OutboxSource::open(source, store.clone()).unwrap())
        .store(store)
        .handler(handler.layer(once).layer(killer))
        .options(Options {
            commit_interval: Duration::from_millis(5),
            lease: Duration::from_secs(3),
            concurrency: 1,
            retry,
            ..Options::default()
        })
        .build()
        .unwrap();
    consumer.run(CancellationToken::new()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_killed_around_the_commit_has_one_effect_for_each_message() {
    let Some(dsn) = server() else { return };
    let shop = Shop::with_outbox(dsn).await;
    shop.sql("CREATE TABLE effects (number bigint NOT NULL)").await;
    let folder = tempfile::tempdir().unwrap();
    for number in 1..=MESSAGES {
        let text = number.to_string();
        shop.client.execute("INSERT INTO outbox (key, payload) VALUES ($1, $1)", &[&text]).await.unwrap();
    }
    let (started, mut kills) = (Instant::now(), 0);
    let mut process = Process::start(&shop, folder.path());
    loop {
        if process.0.try_wait().unwrap().is_some() {
            kills += 1;
            process = Process::start(&shop, folder.path());
        }
        let letters = open_letters(folder.path()).await;
        let is_settled = shop.count("outbox").await == 0 && letters.as_ref().is_some_and(Vec::is_empty);
        if is_settled && shop.count("effects").await >= MESSAGES {
            break;
        }
        let effects = shop.count("effects").await;
        assert!(started.elapsed() < 2 * LONG, "{effects} effects after {kills} kills, open: {letters:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(process);
    let rows = shop.client.query("SELECT number, count(*) FROM effects GROUP BY number", &[]).await.unwrap();
    let effects: BTreeMap<i64, i64> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(effects, (1..=MESSAGES).map(|number| (number, 1)).collect());
    // Timing decides which points the kills miss. Each kind was reached.
    let was_there = |name: &str, digit: i64| {
        (0..MESSAGES / 10).any(|ten| folder.path().join(format!("{name}-{}", 10 * ten + digit)).exists())
    };
    assert!(was_there("after", 1), "killed between the commit and the settling of a message");
    assert!(was_there("after", 3), "killed between the commit and the settling of a letter");
    assert!(was_there("before", 5), "killed before the commit");
    assert!(was_there("failed", 7), "rolled back");
    println!("{kills} kills, {} effects", effects.len());
}

/// Returns the open letters, or `None` while the consumer holds the store exclusively.
async fn open_letters(folder: &Path) -> Option<Vec<Letter>> {
    let store = SqliteStore::open(folder.join("lazaret.db"), StoreOptions::default()).ok()?;
    let found = store.find(&Query::parse("").unwrap(), None, 10).await.ok()?;
    Some(found.letters)
}
