//! The letters of a queue that ended, until they were announced.

use lazaret_core::LetterState;
use lazaret_core::store::{End, EndsPage};
use rusqlite::params;

use super::Queue;
use super::listing::Listing;
use crate::error::{Fault, Work};
use crate::rows::{self, UndecodedLetter, bound, limit as rows_of, unsigned};

impl Queue<'_> {
    pub(crate) fn watch_ends(&mut self) -> Work<()> {
        if self.numbers.is_watched {
            return Ok(());
        }
        self.connection.execute("INSERT INTO watched (qid) VALUES (?1)", [self.numbers.qid])?;
        // In the order in which they were enqueued, which is that of their rows.
        self.connection.execute(
            "INSERT INTO ends (qid, letter, state, attempts) SELECT qid, id, state, attempts FROM letters
             WHERE qid = ?1 AND sid IS NOT NULL AND state IN (?2, ?3, ?4) ORDER BY lid",
            params![
                self.numbers.qid,
                LetterState::Dead as i64,
                LetterState::Parked as i64,
                LetterState::Quarantined as i64
            ],
        )?;
        self.numbers.is_watched = true;
        Ok(())
    }

    pub(crate) fn unwatch_ends(&mut self) -> Work<()> {
        self.connection.execute("DELETE FROM watched WHERE qid = ?1", [self.numbers.qid])?;
        self.connection.execute("DELETE FROM ends WHERE qid = ?1", [self.numbers.qid])?;
        self.numbers.is_watched = false;
        Ok(())
    }

    pub(crate) fn forget_ends(&self, up_to: u64) -> Work<()> {
        let mut delete =
            self.connection.prepare_cached("DELETE FROM ends WHERE qid = ?1 AND number <= ?2")?;
        delete.execute([self.numbers.qid, bound(up_to)])?;
        Ok(())
    }
}

/// A page of ends after this number.
pub(crate) fn page(listing: &Listing<'_>, after: u64, limit: usize) -> Work<EndsPage> {
    let connection = listing.connection;
    let mut select = connection.prepare_cached(
        "SELECT number, letter, state, attempts FROM ends WHERE qid = ?1 AND number > ?2 ORDER BY number LIMIT ?3",
    )?;
    let mut found = select.query(params![listing.qid, bound(after), rows_of(limit)])?;
    let (mut ends, mut last) = (Vec::new(), after);
    while let Some(row) = found.next()? {
        last = unsigned(row.get(0)?)?;
        let id = rows::letter_id(row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?)?;
        let letter = match listing.undecoded(id)?.map(UndecodedLetter::decode).transpose() {
            Err(Fault::Corrupt(damage)) => {
                tracing::error!(%damage, "letter left out of the copies of dead letters");
                None
            }
            letter => letter?,
        };
        ends.push(End { number: last, id, state: rows::state(row.get(2)?)?, attempts: row.get(3)?, letter });
    }
    let mut count = connection.prepare_cached("SELECT count(*) FROM ends WHERE qid = ?1 AND number > ?2")?;
    let left: i64 = count.query_row([listing.qid, bound(last)], |row| row.get(0))?;
    Ok(EndsPage { ends, left: unsigned(left)? })
}
