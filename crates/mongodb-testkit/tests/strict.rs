//! The server of the tests refuses fields that it does not know. A real one does, and a wire server in memory has to.

#![allow(clippy::unwrap_used, reason = "a test that fails panics; that is its answer")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bson::{Document, doc};
use mongodb::error::ErrorKind;
use mongodb::options::IndexOptions;
use mongodb::{Client, Database, IndexModel};

/// A new database. `None`, with a message, without a server.
async fn database() -> Option<Database> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let Ok(uri) = std::env::var("LAZARET_TEST_MONGODB") else {
        let must = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!must, "LAZARET_TEST_MONGODB is not set; `cargo xtask test` starts a server and sets it");
        println!(
            "not run: LAZARET_TEST_MONGODB is not set; `cargo xtask services` starts a server and prints it"
        );
        return None;
    };
    let name = format!("strict_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let database = Client::with_uri_str(uri).await.unwrap().database(&name);
    database.drop().await.unwrap();
    Some(database)
}

/// The code and the message of the error with which the server refuses a command.
async fn refusal(database: &Database, command: Document) -> (i32, String) {
    let error = database.run_command(command.clone()).await.expect_err(&command.to_string());
    match *error.kind {
        ErrorKind::Command(error) => (error.code, error.message),
        other => panic!("{command}: {other}"),
    }
}

#[tokio::test]
async fn a_field_that_the_server_does_not_know_is_refused() {
    let Some(database) = database().await else { return };
    let stream = |field: &str| {
        let stage = doc! { "$changeStream": { field: "lazaret:orders" } };
        doc! { "aggregate": "orders", "pipeline": [stage], "cursor": {} }
    };
    // The driver serialises the comment of a stream into the stage.
    for field in ["comment", "strange"] {
        let (code, message) = refusal(&database, stream(field)).await;
        assert_eq!(code, 40415);
        assert!(message.contains(&format!("'$changeStream.{field}' is an unknown field")), "{message}");
    }
    let commands = [
        doc! { "find": "orders", "filter": {}, "strange": 1 },
        doc! { "aggregate": "orders", "pipeline": [], "cursor": {}, "strange": 1 },
        doc! { "insert": "orders", "documents": [{ "_id": 1 }], "strange": 1 },
        doc! { "update": "orders", "updates": [{ "q": {}, "u": { "$set": { "a": 1 } } }], "strange": 1 },
        doc! { "update": "orders", "updates": [{ "q": {}, "u": { "$set": { "a": 1 } }, "strange": 1 }] },
        doc! { "delete": "orders", "deletes": [{ "q": {}, "limit": 0 }], "strange": 1 },
        doc! { "delete": "orders", "deletes": [{ "q": {}, "limit": 0, "strange": 1 }] },
        doc! { "findAndModify": "orders", "query": {}, "remove": true, "strange": 1 },
        doc! { "count": "orders", "query": {}, "strange": 1 },
        doc! { "distinct": "orders", "key": "a", "strange": 1 },
        doc! { "create": "others", "strange": 1 },
        doc! { "createIndexes": "orders", "indexes": [{ "key": { "a": 1 }, "name": "a" }], "strange": 1 },
        doc! { "createIndexes": "orders", "indexes": [{ "key": { "a": 1 }, "name": "a", "strange": 1 }] },
        doc! { "find": "orders", "readConcern": { "strange": 1 } },
        doc! { "insert": "orders", "documents": [{ "_id": 1 }], "writeConcern": { "strange": 1 } },
    ];
    for command in commands {
        let (code, message) = refusal(&database, command.clone()).await;
        assert!([2, 9, 72, 197, 40415, 51177].contains(&code), "{command}: {code} {message}");
        assert!(message.contains("strange"), "{command}: {message}");
    }
    let value = doc! { "$changeStream": { "fullDocument": "strange" } };
    let (_, message) =
        refusal(&database, doc! { "aggregate": "orders", "pipeline": [value], "cursor": {} }).await;
    assert!(message.contains("fullDocument") && message.contains("strange"), "{message}");
    let orders = database.collection::<Document>("orders");
    assert_eq!(orders.count_documents(doc! {}).await.unwrap(), 0, "what was refused was not done");
    database.drop().await.unwrap();
}

#[tokio::test]
async fn what_a_driver_sends_for_known_options_is_accepted() {
    let Some(database) = database().await else { return };
    let orders = database.collection::<Document>("orders");
    let expiring = IndexOptions::builder().sparse(true).expire_after(Duration::from_secs(3600)).build();
    orders
        .create_index(IndexModel::builder().keys(doc! { "at": 1 }).options(expiring).build())
        .await
        .unwrap();
    let stream = orders
        .watch()
        .full_document(mongodb::options::FullDocumentType::UpdateLookup)
        .batch_size(10)
        .max_await_time(Duration::from_millis(10));
    let mut stream = stream.await.unwrap();
    orders.insert_many([doc! { "_id": 1, "total": 1 }, doc! { "_id": 2, "total": 2 }]).await.unwrap();
    orders.update_many(doc! {}, doc! { "$inc": { "total": 1 } }).upsert(false).await.unwrap();
    let found =
        orders.find_one(doc! { "_id": 1 }).sort(doc! { "_id": -1 }).projection(doc! { "total": 1 }).await;
    assert_eq!(found.unwrap().unwrap().get_i32("total").unwrap(), 2);
    let modified = orders.find_one_and_update(doc! { "_id": 1 }, doc! { "$set": { "done": true } });
    let modified = modified.upsert(true).comment("the comment of a command is known".to_owned());
    assert!(modified.await.unwrap().is_some());
    assert_eq!(orders.estimated_document_count().await.unwrap(), 2);
    assert_eq!(orders.count_documents(doc! {}).limit(1).await.unwrap(), 1);
    assert_eq!(orders.distinct("total", doc! {}).await.unwrap().len(), 2);
    assert_eq!(orders.delete_many(doc! {}).await.unwrap().deleted_count, 2);
    let event = loop {
        if let Some(event) = stream.next_if_any().await.unwrap() {
            break event;
        }
    };
    assert_eq!(event.full_document.unwrap().get_i32("_id").unwrap(), 1);
    drop(stream);
    database.drop().await.unwrap();
}
