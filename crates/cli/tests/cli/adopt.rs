//! `lazaret adopt` with the real binary. Needs a broker, a MongoDB server and a PostgreSQL server, and a build with all of them.

/// The hint of builds that lack a source or a store.
#[cfg(not(all(feature = "kafka", feature = "mongodb", feature = "postgres")))]
const OTHER_BUILD: &str = lazaret_config::Capability::OTHER_BUILD;

#[cfg(not(feature = "kafka"))]
#[test]
fn a_build_without_kafka_says_so() {
    use crate::support::{finish, lazaret};

    for format in ["spring-dlt", "connect", "streams", "x-original"] {
        let ran =
            finish(lazaret(&["adopt", format, "--consumer", "shop", "--topic", "orders-dlt"]), "").ends(2);
        assert!(ran.err.contains("does not support Kafka") && ran.err.contains(OTHER_BUILD), "{}", ran.err);
    }
}

#[cfg(feature = "kafka")]
mod topics {
    use std::fs;

    use tempfile::TempDir;

    use crate::support::{Ran, finish, lazaret, server};

    const CONFIG: &str = "listen: 127.0.0.1:0
store: sqlite:lazaret.db
consumers:
  shop:
    source: { inbox: {} }
    handler: { command: { program: [sh, -c, 'exit 0'] } }
";

    fn adopt(folder: &TempDir, arguments: &[&str]) -> Ran {
        let mut command = lazaret(&["adopt"]);
        command.args(arguments).current_dir(folder.path());
        finish(command, "")
    }

    #[test]
    fn what_is_missing_is_told_without_a_broker() {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("lazaret.yaml"), CONFIG).unwrap();
        for format in ["spring-dlt", "connect", "streams", "x-original"] {
            let no_topic = adopt(&folder, &[format, "--consumer", "shop"]).ends(2);
            let hint = format!("pass --topic, or configure `adopt.{format}`");
            assert!(no_topic.err.contains(&hint), "{}", no_topic.err);
            let no_brokers = adopt(&folder, &[format, "--consumer", "shop", "--topic", "orders-dlt"]).ends(2);
            assert!(no_brokers.err.contains("pass --brokers"), "{}", no_brokers.err);
            adopt(&folder, &[format, "--consumer", "nobody", "--topic", "orders-dlt"]).ends(4);
        }
    }

    #[test]
    fn a_topic_that_does_not_exist_is_named() {
        let Some(brokers) = server("LAZARET_TEST_KAFKA") else { return };
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("lazaret.yaml"), CONFIG).unwrap();
        let arguments = ["spring-dlt", "--consumer", "shop", "--topic", "no-such-dlt", "--brokers", &brokers];
        for more in [&["--dry-run"][..], &[]] {
            let missing = adopt(&folder, &[&arguments[..], more].concat()).ends(1);
            // The command has `--topic`, and the key `adopt` has `topic`: no key of the source is named.
            let remedy = "a topic of no-such-dlt does not exist; create it or correct its name";
            assert!(missing.err.contains(remedy) && missing.out.is_empty(), "{}", missing.err);
        }
    }
}

#[cfg(not(feature = "mongodb"))]
#[test]
fn a_build_without_mongodb_says_so() {
    use crate::support::{finish, lazaret};

    let ran = finish(lazaret(&["adopt", "flowwarden", "--consumer", "shop"]), "").ends(2);
    assert!(ran.err.contains("does not support MongoDB") && ran.err.contains(OTHER_BUILD), "{}", ran.err);
}

#[cfg(feature = "mongodb")]
mod flowwarden {
    use std::fs;
    use std::sync::atomic::{AtomicU32, Ordering};

    use lazaret_source_mongodb::bson::{Bson, DateTime, Document, doc};
    use lazaret_source_mongodb::driver::{Client, Database};
    use serde_json::json;
    use tempfile::TempDir;

    use crate::support::{DEADLINE, Ran, finish, lazaret, server};

    const STREAM: &str = "order-stream";

    /// A folder with a configuration, and a database of its own.
    struct Shop {
        folder: TempDir,
        database: Database,
    }

    impl Shop {
        /// Without a server the test says that it did not run, and fails where everything must run.
        async fn open() -> Option<Self> {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let uri = server("LAZARET_TEST_MONGODB")?;
            let time = jiff::Timestamp::now().as_millisecond();
            let name =
                format!("adopt_{time}_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let folder = TempDir::new().unwrap();
            let config = format!(
                "listen: 127.0.0.1:0
store: sqlite:lazaret.db
consumers:
  shop:
    source: {{ mongodb: {{ uri: '{uri}', database: {name}, collection: orders }} }}
    handler: {{ command: {{ program: [sh, -c, 'exit 0'] }} }}
"
            );
            fs::write(folder.path().join("lazaret.yaml"), config).unwrap();
            let client = Client::with_uri_str(&uri).await.unwrap();
            Some(Self { folder, database: client.database(&name) })
        }

        /// Writes dead letters as FlowWarden does, for these ids, streams and statuses.
        async fn dead_letters(&self, written: &[(&str, &str, &str)]) {
            let now = DateTime::now();
            let documents = written.iter().enumerate().map(|(number, (id, stream, status))| {
                doc! {
                    "_id": id, "streamName": stream, "operationType": "INSERT", "documentKey": { "_id": id },
                    "fullDocument": { "_id": id, "kind": "poison" },
                    "resumeToken": { "_data": format!("82{number:08X}000000012B042C0100296E") },
                    "error": { "type": "shop.Bad", "message": "no", "stackTrace": Bson::Null },
                    "attempts": 3, "status": status, "firstAttemptAt": now, "lastAttemptAt": now, "createdAt": now,
                    "expiresAt": Bson::Null, "metadata": {},
                }
            });
            self.database.collection("_fw_dlq").insert_many(documents).await.unwrap();
        }

        /// Writes the position behind an event.
        async fn position(&self) {
            let orders = self.database.collection::<Document>("orders");
            orders.insert_one(doc! { "_id": "before" }).await.unwrap();
            let mut stream = orders.watch().await.unwrap();
            orders.insert_one(doc! { "_id": "event" }).await.unwrap();
            let event = async {
                loop {
                    if let Some(event) = stream.next_if_any().await.unwrap() {
                        return event;
                    }
                }
            };
            let event = tokio::time::timeout(DEADLINE, event).await.expect("timed out waiting for an event");
            let token = lazaret_source_mongodb::bson::serialize_to_bson(&event.id).unwrap();
            let position = doc! {
                "_id": STREAM, "lastProcessedToken": token, "lastProcessedTimestamp": DateTime::now(),
                "lastHeartbeatTimestamp": DateTime::now(),
            };
            self.database.collection("_fw_checkpoints").insert_one(position).await.unwrap();
        }

        fn run(&self, arguments: &[&str]) -> Ran {
            let mut command = lazaret(&["adopt", "flowwarden"]);
            command.args(arguments).current_dir(self.folder.path());
            finish(command, "")
        }

        fn adopt(&self, arguments: &[&str]) -> Ran {
            self.run(&[&["--consumer", "shop", "--stream", STREAM], arguments].concat())
        }

        async fn close(self) {
            self.database.drop().await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn dead_letters_and_the_position_are_adopted_once() {
        let Some(shop) = Shop::open().await else { return };
        shop.dead_letters(&[("a", STREAM, "PENDING"), ("b", STREAM, "PENDING")]).await;
        shop.dead_letters(&[("c", STREAM, "REPROCESSED"), ("d", "payment-stream", "PENDING")]).await;
        shop.position().await;

        let dry = shop.adopt(&["--dry-run", "--json"]).ends(0);
        let told = dry.json();
        assert_eq!(told["letters"]["adopted"], 2);
        let streams = told["letters"]["streams"].as_array().unwrap();
        assert!(streams.contains(&json!({"stream": "payment-stream", "status": "PENDING", "documents": 1})));
        assert_eq!((&told["position"]["outcome"], &told["dry-run"]), (&json!("adopted"), &json!(true)));
        assert!(dry.err.contains("next: lazaret adopt flowwarden --consumer shop"), "{}", dry.err);

        let done = shop.adopt(&["--json"]).ends(0).json();
        let letters = &done["letters"];
        assert_eq!(
            (&letters["read"], &letters["adopted"]),
            (&json!(4), &json!(2)),
            "the dry run changed nothing"
        );
        assert_eq!((&letters["closed"], &letters["foreign"]), (&json!(1), &json!(1)));
        assert_eq!(done["position"]["anchor"], "processed");
        let again = shop.adopt(&["--json"]).ends(0).json();
        assert_eq!(
            (&again["letters"]["adopted"], &again["letters"]["already-there"]),
            (&json!(0), &json!(2))
        );
        assert_eq!(again["position"]["outcome"], "already-there");

        let table = shop.adopt(&[]).ends(0);
        let (first, rest) = table.out.split_once('\n').unwrap();
        assert_eq!(first, "4 documents: 0 adopted, 2 already there, 1 closed, 1 of other streams");
        assert_eq!(rest, "position: already there\n");
        shop.close().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn unknown_documents_are_named_and_end_with_three() {
        let Some(shop) = Shop::open().await else { return };
        shop.dead_letters(&[("a", STREAM, "PENDING"), ("b", STREAM, "INVESTIGATING")]).await;
        let ran = shop.adopt(&["--letters-only"]).ends(3);
        assert!(ran.err.contains("_fw_dlq/b: unknown status `INVESTIGATING`"), "{}", ran.err);
        assert_eq!(ran.out, "2 documents: 1 adopted, 0 already there, 1 unknown\n");
        shop.adopt(&["--letters-only", "--status", "INVESTIGATING"]).ends(0);
        shop.close().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn wrong_names_are_told_with_a_remedy() {
        let Some(shop) = Shop::open().await else { return };
        let missing = shop.adopt(&[]).ends(1);
        assert!(missing.err.contains("does not exist") && missing.out.is_empty(), "{}", missing.err);
        shop.dead_letters(&[("a", STREAM, "PENDING")]).await;
        let other = shop.run(&["--consumer", "shop"]).ends(4);
        assert!(other.err.contains("--stream"), "{}", other.err);
        let nobody = shop.run(&["--consumer", "nobody"]).ends(4);
        assert!(nobody.err.contains("\"nobody\" not found"), "{}", nobody.err);
        let memory = fs::read_to_string(shop.folder.path().join("lazaret.yaml")).unwrap();
        fs::write(shop.folder.path().join("lazaret.yaml"), memory.replace("sqlite:lazaret.db", "'memory:'"))
            .unwrap();
        let memory = shop.adopt(&[]).ends(2);
        assert!(memory.err.contains("in memory"), "{}", memory.err);
        shop.close().await;
    }
}

#[cfg(not(feature = "postgres"))]
#[test]
fn a_build_without_postgresql_says_so() {
    use crate::support::{finish, lazaret};

    let arguments = ["adopt", "axon", "--consumer", "billing", "--dsn", "postgres://localhost"];
    let ran = finish(lazaret(&arguments), "").ends(2);
    assert!(ran.err.contains("does not support PostgreSQL") && ran.err.contains(OTHER_BUILD), "{}", ran.err);
}

#[cfg(feature = "postgres")]
mod axon {
    use std::fs;
    use std::sync::atomic::{AtomicU32, Ordering};

    use serde_json::json;
    use tempfile::TempDir;
    use tokio_postgres::{Client, NoTls};

    use crate::support::{Ran, finish, lazaret, server};

    const CONFIG: &str = "listen: 127.0.0.1:0
store: sqlite:lazaret.db
consumers:
  billing:
    source: { inbox: {} }
    handler: { command: { program: [sh, -c, 'exit 0'] } }
";

    /// A folder with a configuration, and a schema with a table of Axon.
    struct Shop {
        folder: TempDir,
        dsn: String,
        schema: String,
        client: Client,
    }

    impl Shop {
        /// Without a server the test says that it did not run, and fails where everything must run.
        async fn open() -> Option<Self> {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let dsn = server("LAZARET_TEST_POSTGRES")?;
            let (client, connection) = tokio_postgres::connect(&dsn, NoTls).await.unwrap();
            tokio::spawn(connection);
            let time = jiff::Timestamp::now().as_millisecond();
            let schema =
                format!("adopt_{time}_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let create = format!(
                "CREATE SCHEMA {schema}; CREATE TABLE {schema}.dead_letter_entry (dead_letter_id text, \
                 processing_group text, sequence_identifier text, sequence_index bigint, identifier text, type text, \
                 payload bytea, enqueued_at timestamptz, cause_type text, cause_message text)"
            );
            client.batch_execute(&create).await.unwrap();
            let folder = TempDir::new().unwrap();
            fs::write(folder.path().join("lazaret.yaml"), CONFIG).unwrap();
            Some(Self { folder, dsn, schema, client })
        }

        async fn insert(&self, group: &str, sequence: &str, index: i64) {
            let insert = format!(
                "INSERT INTO {}.dead_letter_entry VALUES ($1, $2, $3, $4, $1, 'shop.Placed#1', '{{}}', now(), \
                 'shop.Bad', 'no stock')",
                self.schema
            );
            let id = format!("{group}-{sequence}-{index}");
            self.client.execute(&insert, &[&id, &group, &sequence, &index]).await.unwrap();
        }

        fn adopt(&self, arguments: &[&str]) -> Ran {
            let table = format!("{}.dead_letter_entry", self.schema);
            let mut command = lazaret(&["adopt", "axon", "--consumer", "billing", "--table", &table]);
            command.args(arguments).current_dir(self.folder.path()).env("LAZARET_ADOPT_DSN", &self.dsn);
            finish(command, "")
        }

        async fn close(self) {
            self.client.batch_execute(&format!("DROP SCHEMA {} CASCADE", self.schema)).await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn dead_letters_of_a_group_are_adopted_once() {
        let Some(shop) = Shop::open().await else { return };
        shop.insert("billing", "order-1", 0).await;
        shop.insert("billing", "order-1", 1).await;
        shop.insert("shipping", "order-1", 0).await;

        let dry = shop.adopt(&["--dry-run", "--json"]).ends(0);
        let told = dry.json();
        assert_eq!((&told["letters"]["adopted"], &told["dry-run"]), (&json!(2), &json!(true)));
        let groups = told["letters"]["groups"].as_array().unwrap();
        assert!(groups.contains(&json!({"group": "shipping", "entries": 1, "sequences": 1})), "{groups:?}");
        assert!(dry.err.contains("next: lazaret adopt axon --consumer billing"), "{}", dry.err);

        let done = shop.adopt(&[]).ends(0);
        assert_eq!(done.out, "2 rows: 2 adopted, 0 already there\n", "the dry run changed nothing");
        let again = shop.adopt(&["--json"]).ends(0).json();
        let letters = &again["letters"];
        assert_eq!((&letters["adopted"], &letters["already-there"]), (&json!(0), &json!(2)));
        shop.close().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn wrong_names_are_told_with_a_remedy() {
        let Some(shop) = Shop::open().await else { return };
        let nothing = shop.adopt(&["--group", "orders"]).ends(4);
        assert!(nothing.err.contains("--dry-run lists the groups"), "{}", nothing.err);
        let mut other = lazaret(&["adopt", "axon", "--consumer", "billing", "--table", "no_such_table"]);
        other.current_dir(shop.folder.path()).env("LAZARET_ADOPT_DSN", &shop.dsn);
        let missing = finish(other, "").ends(1);
        assert!(missing.err.contains("there is no table no_such_table"), "{}", missing.err);
        let mut away = lazaret(&["adopt", "axon", "--consumer", "billing"]);
        let dsn = "postgres://axon:hunter2@127.0.0.1:1/shop?connect_timeout=2";
        away.current_dir(shop.folder.path()).env("LAZARET_ADOPT_DSN", dsn);
        let away = finish(away, "").ends(1);
        assert!(!away.err.contains("hunter2"), "{}", away.err);
        shop.close().await;
    }
}
