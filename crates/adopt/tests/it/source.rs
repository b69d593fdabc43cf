//! The generic part: a source in memory is adopted once and in order, and resumed at its cursor.

use async_trait::async_trait;
use lazaret_adopt::{
    ADOPTED_FROM, AdoptErrorKind, Content, Cursor, DeadLetterSource, ForeignLetter, Found, Target, adopt,
};
use lazaret_core::source::SourceError;
use lazaret_core::store::{LetterStore, Limits};
use lazaret_core::{Failure, Message, Position, QueueName, Reason};
use lazaret_memory::MemoryStore;
use serde::{Deserialize, Serialize};

const CHECKPOINT: &str = "adopt/shop/rows";

/// The row that is read next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Row(u64);

impl Cursor for Row {
    type Place = u64;

    fn move_back_to(&mut self, row: &u64) {
        self.0 = self.0.min(*row);
    }

    fn is_past(&self, row: &u64) -> bool {
        *row < self.0
    }
}

/// Rows, each with the group of its dead letter, or `None` for a row that is not a dead letter.
struct Table {
    rows: Vec<Option<&'static str>>,
    next: u64,
    batch: u64,
}

impl Table {
    fn new(rows: impl IntoIterator<Item = Option<&'static str>>) -> Self {
        Self { rows: rows.into_iter().collect(), next: 0, batch: 3 }
    }
}

#[async_trait]
impl DeadLetterSource for Table {
    type Cursor = Row;

    async fn open(&mut self, Row(next): Row) -> Result<(), SourceError> {
        self.next = next;
        Ok(())
    }

    async fn read(&mut self) -> Result<Vec<Found<u64>>, SourceError> {
        let start = self.next;
        self.next = (start + self.batch).min(self.rows.len() as u64);
        let found = (start..self.next).map(|row| {
            let letter = self.rows[row as usize].map(|group| {
                let message = Message::new(format!("m-{row}"), "orders", Position::new(0, row)).with_key("k");
                let cause = Failure::new(Reason::HANDLER_ERROR, "E", "no");
                ForeignLetter { group: Some(group.to_owned()), ..ForeignLetter::new("table", message, cause) }
            });
            let content = match self.rows[row as usize] {
                Some("closed") => Content::Closed,
                _ => letter.into(),
            };
            Found { place: row, address: format!("rows/{row}"), content }
        });
        Ok(found.collect())
    }

    fn cursor(&self) -> Row {
        Row(self.next)
    }

    fn remaining(&self) -> u64 {
        self.rows.len() as u64 - self.next
    }
}

fn target() -> Target {
    Target { limits: Limits::NONE, ..Target::new(QueueName::of("shop", "shop")) }
}

async fn offsets(store: &MemoryStore) -> Vec<u64> {
    let letters = store.sequence(&target().queue, &"k".into(), 0, 100).await.unwrap();
    letters.iter().map(|letter| letter.message.position.offset).collect()
}

#[tokio::test]
async fn letters_are_adopted_once_and_everything_else_is_counted() {
    // I2, I8, I11
    let store = MemoryStore::default();
    let mut table =
        Table::new([Some("shop"), None, Some("other"), Some("shop"), Some("shop"), Some("closed")]);
    let only = Target { group: Some("shop".to_owned()), ..target() };
    let report = adopt(&store, &only, CHECKPOINT, &mut table, std::future::pending()).await.unwrap();
    assert_eq!((report.run.read, report.run.adopted, report.run.closed), (6, 3, 1));
    assert_eq!((report.run.unknown, report.run.foreign, report.left), (1, 1, 0));
    assert_eq!((report.next, report.unknown_at), (Row(6), vec!["rows/1".to_owned()]));
    assert_eq!(offsets(&store).await, [0, 3, 4]);

    table.rows.push(Some("shop"));
    let report = adopt(&store, &only, CHECKPOINT, &mut table, std::future::pending()).await.unwrap();
    assert_eq!((report.run.read, report.run.adopted, report.total.adopted), (1, 1, 4));
    let again = adopt(&store, &only, "adopt/shop/again", &mut table, std::future::pending()).await.unwrap();
    assert_eq!((again.run.adopted, again.run.already_there), (0, 4));

    let letters = store.sequence(&only.queue, &"k".into(), 0, 1).await.unwrap();
    assert_eq!(letters[0].diagnostics[ADOPTED_FROM], "rows/0");
}

#[tokio::test]
async fn a_full_queue_stops_it_at_the_first_letter_that_does_not_fit() {
    // I1
    let store = MemoryStore::default();
    let mut table = Table::new([Some("shop"); 5]);
    let small = Target { limits: Limits { max_sequence_size: Some(2), ..Limits::NONE }, ..target() };
    let stopped = adopt(&store, &small, CHECKPOINT, &mut table, std::future::pending()).await.unwrap_err();
    assert!(matches!(stopped.kind, AdoptErrorKind::Full(_)), "{stopped}");
    assert_eq!((stopped.report.run.adopted, &stopped.report.next), (2, &Row(2)));

    let report = adopt(&store, &target(), CHECKPOINT, &mut table, std::future::pending()).await.unwrap();
    assert_eq!((report.run.adopted, report.next), (3, Row(5)));
    assert_eq!(offsets(&store).await, [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn a_shutdown_before_the_first_batch_adopts_nothing() {
    let store = MemoryStore::default();
    let mut table = Table::new([Some("shop"); 5]);
    let report = adopt(&store, &target(), CHECKPOINT, &mut table, async {}).await.unwrap();
    assert_eq!((report.run.read, report.left, report.next), (0, 5, Row(0)));
}
