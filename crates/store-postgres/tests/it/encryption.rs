//! No row of an encrypted store shows content.

use std::sync::Arc;

use lazaret_core::store::{Actor, Change, HandOff, Limits, Placement, Store};
use lazaret_core::{Failure, Letter, LetterState, Message, Position, QueueName, Reason, Timestamp};
use lazaret_sealing::{EncryptionKey, SealedStore};

use crate::support::{TestSchema, add_notes, server};

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

/// The tables that hold the secret, as text or as bytes.
async fn leaks(schema: &TestSchema) -> Vec<String> {
    let client = schema.client().await;
    let bytes: String = SECRET.bytes().map(|byte| format!("{byte:02x}")).collect();
    let tables = client.query("SELECT tablename FROM pg_tables WHERE schemaname = $1", &[&schema.name]).await;
    let mut found = Vec::new();
    for row in tables.unwrap() {
        let table: String = row.get(0);
        let all = format!("SELECT coalesce(string_agg(t::text, ' '), '') FROM {table} t");
        let text: String = client.query_one(&all, &[]).await.unwrap().get(0);
        if text.contains(SECRET) || text.contains(&bytes) {
            found.push(table);
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn no_row_of_an_encrypted_store_shows_content() {
    let Some(dsn) = server() else { return };
    let schema = TestSchema::new(dsn);
    let inside = schema.open(None).await;
    let store =
        SealedStore::open(Arc::new(inside.clone()), vec![EncryptionKey::new(&[7; 32])]).await.unwrap();
    write(&store).await;
    add_notes(&inside, &queue(), &schema.client().await).await;
    assert_eq!(leaks(&schema).await, [""; 0]);
}

#[tokio::test]
async fn without_encryption_rows_show_content() {
    let Some(dsn) = server() else { return };
    let schema = TestSchema::new(dsn);
    let store = schema.open(None).await;
    write(&store).await;
    assert!(leaks(&schema).await.len() >= 3, "the test above can find it");
}
