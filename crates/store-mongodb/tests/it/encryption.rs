//! No document of an encrypted store shows content.

use std::sync::Arc;

use bson::{Document, doc};
use futures_util::TryStreamExt;
use lazaret_core::store::{Actor, Change, HandOff, Limits, Placement, Store};
use lazaret_core::{Failure, Letter, LetterState, Message, Position, QueueName, Reason, Timestamp};
use lazaret_sealing::{EncryptionKey, SealedStore};

use crate::support::{TestDatabase, server};

const SECRET: &str = "PAN-4111-1111";

fn queue() -> QueueName {
    QueueName::of("orders", "orders")
}

async fn write(store: &impl Store) {
    let message = Message::new("evt-1", "orders", Position::new(0, 1))
        .with_payload(format!("{{\"card\":\"{SECRET}\"}}"))
        .with_header("card", SECRET);
    let mut letter = Letter::new(queue(), "k".into(), message.into(), Timestamp::now());
    letter.state = LetterState::Dead;
    letter.cause = Some(Failure::new(Reason::TIMEOUT, "HttpError", format!("no answer for {SECRET}")));
    letter.diagnostics.insert("card".into(), SECRET.into());
    let id = letter.id;
    let item = HandOff { letter, placement: Placement::Open, grant: None };
    store.hand_off(&queue(), &Limits::NONE, vec![item]).await.unwrap().remove(0).unwrap();
    let (edit, ada) = (Change::Payload(Some(SECRET.into())), Actor::new("ada", "cli", "typo"));
    store.change(&queue(), id, &edit, &ada).await.unwrap();
}

/// The collections that hold the secret.
async fn leaks(database: &TestDatabase) -> Vec<String> {
    let database = database.database().await;
    let mut found = Vec::new();
    for name in database.list_collection_names().await.unwrap() {
        let documents = database.collection::<Document>(&name).find(doc! {}).await.unwrap();
        let documents: Vec<Document> = documents.try_collect().await.unwrap();
        let holds = |document: &Document| {
            let bytes = bson::serialize_to_vec(document).unwrap();
            bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes())
        };
        if documents.iter().any(holds) {
            found.push(name);
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn no_document_of_an_encrypted_store_shows_content() {
    let Some(uri) = server() else { return };
    let database = TestDatabase::new(uri);
    let inside = Arc::new(database.open(None).await);
    let store = SealedStore::open(inside, vec![EncryptionKey::new(&[7; 32])]).await.unwrap();
    write(&store).await;
    assert_eq!(leaks(&database).await, [""; 0]);
}

#[tokio::test]
async fn without_encryption_documents_show_content() {
    let Some(uri) = server() else { return };
    let database = TestDatabase::new(uri);
    write(&database.open(None).await).await;
    assert!(!leaks(&database).await.is_empty(), "the test above can find it");
}
