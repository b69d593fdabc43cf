//! The statements of Axon's JDBC dead-letter queue, as a baseline.
//!
//! One table for all queues. A letter is enqueued by four statements and a commit. A sequence is picked by a scan of all letters, and each
//! of its letters costs three statements, each its own transaction.

use std::time::Instant;

use lazaret_store_postgres::driver::{Client, Statement};

use super::server::Schema;
use crate::core::rate;

const GROUP: &str = "bench";
/// The longest claim of a letter, which Axon compares as text.
const NOW: &str = "2026-01-01T00:00:00.000Z";
const TABLE: &str = "
    CREATE TABLE dead_letter_entry (
        dead_letter_id text PRIMARY KEY, processing_group text NOT NULL, sequence_identifier text NOT NULL,
        sequence_index bigint NOT NULL, event_identifier text NOT NULL, type text NOT NULL, timestamp text NOT NULL,
        payload bytea NOT NULL, enqueued_at text NOT NULL, last_touched text NOT NULL, processing_started text,
        cause_type text, cause_message text);
    CREATE INDEX dle_group ON dead_letter_entry (processing_group);
    CREATE INDEX dle_sequence ON dead_letter_entry (processing_group, sequence_identifier);
    CREATE UNIQUE INDEX dle_index ON dead_letter_entry (processing_group, sequence_identifier, sequence_index)";

const COUNT: &str =
    "SELECT count(*) FROM dead_letter_entry WHERE processing_group = $1 AND sequence_identifier = $2";
const SEQUENCES: &str =
    "SELECT count(DISTINCT sequence_identifier) FROM dead_letter_entry WHERE processing_group = $1";
const LAST: &str = "SELECT coalesce(max(sequence_index), -1) + 1 FROM dead_letter_entry
    WHERE processing_group = $1 AND sequence_identifier = $2";
const INSERT: &str = "INSERT INTO dead_letter_entry VALUES ($1, $2, $3, $4, $1, 'Order', $5, $6, $5, $5, NULL, 'Timeout', 'no answer')";
const FILL: &str = "INSERT INTO dead_letter_entry
    SELECT 'filled-' || n, $1, 'order-' || n % $3::bigint, n / $3::bigint, 'e-' || n, 'Order', $4, $5, $4, $4, NULL, 'Timeout', 'no answer'
    FROM generate_series(0, $2::bigint - 1) AS n";
/// The oldest head that nobody has claimed.
const PICK: &str = "SELECT * FROM dead_letter_entry d WHERE processing_group = $1
    AND sequence_index = (SELECT min(sequence_index) FROM dead_letter_entry m
        WHERE m.processing_group = d.processing_group AND m.sequence_identifier = d.sequence_identifier)
    AND (processing_started IS NULL OR processing_started < $2)
    ORDER BY last_touched LIMIT 1";
const NEXT: &str = "SELECT * FROM dead_letter_entry WHERE processing_group = $1 AND sequence_identifier = $2
    AND sequence_index > $3 ORDER BY sequence_index LIMIT 1";
const CLAIM: &str = "UPDATE dead_letter_entry SET processing_started = $2 WHERE dead_letter_id = $1
    AND (processing_started IS NULL OR processing_started < $2)";
const DELETE: &str = "DELETE FROM dead_letter_entry WHERE dead_letter_id = $1";

/// A queue, one caller.
pub(super) struct Queue {
    client: Client,
    payload: Vec<u8>,
}

impl Queue {
    /// Creates a queue that holds this many letters in this many sequences.
    pub(super) async fn filled(
        schema: &Schema<'_>,
        letters: usize,
        sequences: usize,
        payload: usize,
    ) -> Self {
        let (client, payload) = (schema.client().await, vec![b'x'; payload]);
        client.batch_execute(TABLE).await.expect("the server creates tables");
        let (letters, sequences) = (letters as i64, sequences.max(1) as i64);
        client
            .execute(FILL, &[&GROUP, &letters, &sequences, &NOW, &payload])
            .await
            .expect("the server takes rows");
        client.batch_execute("VACUUM ANALYZE dead_letter_entry").await.expect("the server vacuums");
        Self { client, payload }
    }

    async fn prepare(&self, sql: &str) -> Statement {
        self.client.prepare(sql).await.expect("the statements of the baseline are valid")
    }

    /// Enqueues letters in sequences of their own, and returns letters per second.
    pub(super) async fn enqueue(&mut self, letters: usize) -> f64 {
        let count = self.prepare(COUNT).await;
        let sequences = self.prepare(SEQUENCES).await;
        let last = self.prepare(LAST).await;
        let insert = self.prepare(INSERT).await;
        let started = Instant::now();
        for number in 0..letters {
            let (id, sequence) = (format!("l-{number}"), format!("new-{number}"));
            let transaction = self.client.transaction().await.expect("the server begins transactions");
            let answered = "the server answers the baseline";
            transaction.query_one(&count, &[&GROUP, &sequence]).await.expect(answered);
            transaction.query_one(&sequences, &[&GROUP]).await.expect(answered);
            let index: i64 = transaction.query_one(&last, &[&GROUP, &sequence]).await.expect(answered).get(0);
            transaction
                .execute(&insert, &[&id, &GROUP, &sequence, &index, &NOW, &self.payload])
                .await
                .expect(answered);
            transaction.commit().await.expect("the server commits");
        }
        rate(letters, started.elapsed())
    }

    /// Processes sequences from head to end, and returns letters per second.
    pub(super) async fn drain(&self, sequences: usize) -> f64 {
        let (pick, next) = (self.prepare(PICK).await, self.prepare(NEXT).await);
        let (claim, delete) = (self.prepare(CLAIM).await, self.prepare(DELETE).await);
        let answered = "the server answers the baseline";
        let mut letters = 0;
        let started = Instant::now();
        for _ in 0..sequences {
            let mut row = self.client.query_opt(&pick, &[&GROUP, &NOW]).await.expect(answered);
            while let Some(letter) = row {
                let (id, sequence, index): (&str, &str, i64) = (
                    letter.get("dead_letter_id"),
                    letter.get("sequence_identifier"),
                    letter.get("sequence_index"),
                );
                self.client.execute(&claim, &[&id, &NOW]).await.expect(answered);
                row = self.client.query_opt(&next, &[&GROUP, &sequence, &index]).await.expect(answered);
                self.client.execute(&delete, &[&id]).await.expect(answered);
                letters += 1;
            }
        }
        rate(letters, started.elapsed())
    }
}
