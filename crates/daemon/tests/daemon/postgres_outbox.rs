//! A transactional outbox in PostgreSQL: rows are handled across a kill, and what the doctor says. Needs a server.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use lazaret_postgres_testkit::Cluster;
use rustix::process::Signal;
use tokio_postgres::{Client, NoTls};

use crate::support::{Folder, get, wait_for};

/// A server, and a schema of its own for each test.
struct Shop {
    dsn: String,
    schema: String,
    client: Client,
}

impl Shop {
    /// Without a server the test says that it did not run, and fails where everything must run.
    async fn open() -> Option<Self> {
        let Ok(dsn) = std::env::var("LAZARET_TEST_POSTGRES") else {
            let must = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(
                !must,
                "LAZARET_TEST_POSTGRES is not set; `cargo xtask test` starts a server and sets it"
            );
            println!(
                "not run: LAZARET_TEST_POSTGRES is not set; `cargo xtask services` starts a server and prints it"
            );
            return None;
        };
        Some(Self::at(dsn).await)
    }

    /// On this server.
    async fn at(dsn: String) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let time = jiff::Timestamp::now().as_millisecond();
        let schema = format!("lzd_{time}_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let (client, connection) = tokio_postgres::connect(&dsn, NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(&format!("CREATE SCHEMA {schema}; SET search_path = {schema}")).await.unwrap();
        Self { dsn, schema, client }
    }

    /// A folder with a configuration. The handler appends each payload to a file, and refuses `poison`.
    fn folder(&self, more: &str) -> Folder {
        let folder = Folder::new();
        folder.write(
            "handle.sh",
            "payload=$(cat)\n[ \"$payload\" != poison ] || exit 65\necho \"$payload\" >> handled.log\n",
        );
        let source = format!(
            "{{ postgres-outbox: {{ dsn: '{}', table: {}.outbox, key: aggregate, poll: 50ms{more} }} }}",
            self.dsn, self.schema
        );
        let config = format!(
            "
listen: 127.0.0.1:0
store: sqlite:lazaret.db
consumers:
  shop:
    source: {source}
    handler: {{ command: {{ program: [sh, handle.sh] }} }}
    breaker: off
    advanced: {{ commit-interval: 50ms }}
"
        );
        folder.write("lazaret.yaml", &config);
        folder
    }

    async fn create(&self) {
        let columns = "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, aggregate text, payload text";
        self.client.batch_execute(&format!("CREATE TABLE outbox ({columns})")).await.unwrap();
    }

    async fn insert(&self, payloads: &[&str]) {
        for payload in payloads {
            let sql = "INSERT INTO outbox (aggregate, payload) VALUES ($1, $1)";
            self.client.execute(sql, &[payload]).await.unwrap();
        }
    }

    async fn until_empty(&self) {
        let rows = || async { self.client.query("SELECT FROM outbox", &[]).await.unwrap().len() };
        while rows().await > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    async fn drop(self) {
        self.client.batch_execute(&format!("DROP SCHEMA {} CASCADE", self.schema)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_handled_and_deleted_across_a_kill() {
    // I1
    let Some(shop) = Shop::open().await else { return };
    shop.create().await;
    let folder = shop.folder("");
    shop.insert(&["1", "poison", "2"]).await;
    let mut daemon = folder.start(&["run"]);
    daemon.logs("listening", 1);
    shop.until_empty().await;
    daemon.kill();
    shop.insert(&["3"]).await;
    let mut daemon = folder.start(&["run"]);
    daemon.logs("listening", 2);
    let address = daemon.address();
    // A transaction that is open is named.
    let (other, connection) = tokio_postgres::connect(&shop.dsn, NoTls).await.unwrap();
    tokio::spawn(connection);
    let open = format!("BEGIN; INSERT INTO {}.outbox (payload) VALUES ('never')", shop.schema);
    other.batch_execute(&open).await.unwrap();
    wait_for("the open transaction", || {
        get(&address, "/v1/status").1.contains("rows wait for open transactions").then_some(())
    });
    other.batch_execute("ROLLBACK").await.unwrap();
    shop.until_empty().await;
    wait_for("the letter", || get(&address, "/v1/status").1.contains("\"dead\":1").then_some(()));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", folder.read("stderr.log"));
    let mut handled: Vec<String> = folder.read("handled.log").lines().map(str::to_owned).collect();
    handled.sort();
    handled.dedup();
    assert_eq!(handled, ["1", "2", "3"]);
    shop.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_whose_outbox_cannot_be_read_is_not_ready() {
    // I9: its store responds.
    let Some(mut cluster) = Cluster::for_test(&[]) else { return };
    let shop = Shop::at(cluster.dsn()).await;
    shop.create().await;
    shop.insert(&["1"]).await;
    let folder = shop.folder("");
    let mut daemon = folder.start(&["run"]);
    let address = daemon.address();
    wait_for("readiness", || (get(&address, "/readyz").0 == 200).then_some(()));
    shop.until_empty().await;
    cluster.crash().unwrap();
    wait_for("the outage", || {
        let (status, reasons) = get(&address, "/readyz");
        (status == 503 && reasons.contains("the outbox is not readable, retrying")).then_some(())
    });
    cluster.run().unwrap();
    wait_for("readiness", || (get(&address, "/readyz").0 == 200).then_some(()));
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", folder.read("stderr.log"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_examines_the_table_and_a_wrong_one_stops_the_consumer() {
    let Some(shop) = Shop::open().await else { return };
    let doctor = |folder: &Folder| {
        let doctor = Command::new(env!("CARGO_BIN_EXE_lazaret-daemon"))
            .arg("doctor")
            .current_dir(folder.path("."))
            .output();
        String::from_utf8(doctor.unwrap().stdout).unwrap()
    };
    let folder = shop.folder("");
    assert!(doctor(&folder).contains("there is no table"), "{}", doctor(&folder));
    let mut daemon = folder.start(&["run"]);
    daemon.logs("there is no table", 1);
    drop(daemon);
    shop.create().await;
    assert!(doctor(&folder).contains("can be read as an outbox"), "{}", doctor(&folder));
    let error = shop.folder(", type: kind");
    assert!(doctor(&error).contains("has no column kind"), "{}", doctor(&error));
    shop.drop().await;
}
