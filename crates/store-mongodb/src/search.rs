//! Searches for letters, and counts those that match.
//!
//! A search reads letters from the newest to the oldest, along the index that suits the query best (`rows`). The server leaves out those that
//! cannot match, as far as it can tell (`condition`); the query itself decides about the others. What a call reads is bounded (I7): if the index
//! does not decide alone, the call looks at a part of it, whose end the server finds in the index without reading letters.

mod condition;
mod rows;

use bson::{Document, RawDocumentBuf, doc};
use lazaret_core::letter::{Letter, LetterId, LetterState};
use lazaret_core::query::Query;
use lazaret_core::store::{ErrorKind, LettersPage, Matches, Result, StoreError};
use lazaret_core::{QueueName, Timestamp};
use mongodb::action::Action;
use serde::Deserialize;

use self::condition::{Condition, Part};
use self::rows::{Along, Rows};
use crate::database::{by_ids, count, decode, list_fields};
use crate::documents::letter::LetterDoc;
use crate::error::reading;
use crate::store::MongoStore;
use crate::values::int;

/// Maximum number of letters that the server looks at for a page.
pub(crate) const LOOKED_AT: u64 = 10_000;
/// Maximum number of letters that are read for a page, if the server cannot leave any out.
const READ: u64 = 2_000;
/// Maximum number of letters that are looked at for a count.
pub(crate) const COUNTED: u64 = 100_000;
/// The pages that are read for a count about which the server cannot decide.
const COUNT_PAGES: usize = 8;
/// The letters of such a page.
const COUNT_PAGE: usize = 500;

/// All that Lazaret reads of a letter. The other fields repeat parts of it for people.
pub(crate) fn whole() -> Document {
    doc! { "lazaret": 1 }
}

/// The same without the payload.
fn without_payload() -> Document {
    doc! {
        "lazaret.message.payload": 0, "fullDocument": 0, "documentKey": 0, "resumeToken": 0, "error": 0, "metadata": 0,
    }
}

fn not_a_cursor(text: &str) -> StoreError {
    let context = format!("{text:?} is not a cursor of this store");
    StoreError::not_done(ErrorKind::Invalid, "find", context)
}

/// A cursor is the number of the last letter that was looked at.
fn parse_cursor(text: &str) -> Result<i64> {
    let number = text.parse().ok().filter(|number: &u64| number.to_string() == text);
    number.map(int).ok_or_else(|| not_a_cursor(text))
}

/// A query in execution.
struct Search<'q> {
    query: &'q Query,
    now: Timestamp,
    rows: Rows,
    condition: Condition,
}

/// A letter, reduced to its number.
#[derive(Deserialize)]
struct NumberDoc {
    lazaret: Number,
}

#[derive(Deserialize)]
struct Number {
    number: i64,
}

impl Search<'_> {
    /// How many letters are looked at, at most: `None` if the index alone decides which match.
    fn bound(&self, most: u64) -> Option<u64> {
        match (&self.condition.part, self.condition.exact) {
            (Part::Always, true) => None,
            (Part::Always, false) => Some(READ),
            _ => Some(most),
        }
    }
}

impl MongoStore {
    async fn prepare<'q>(&self, query: &'q Query) -> Result<Search<'q>> {
        self.catch_up().await?;
        self.prepare_now(query).await
    }

    /// The same, if nothing is left to do.
    async fn prepare_now<'q>(&self, query: &'q Query) -> Result<Search<'q>> {
        let now = self.now().await?;
        let queues = if query.is_everything() { Vec::new() } else { self.queues_with_letters().await? };
        let rows = Rows::of(query, &queues);
        let condition = Condition::of(query, &queues, now, &|term| rows.decide(term));
        Ok(Search { query, now, rows, condition })
    }

    /// A filter for the letters that a query can match; `None` if it matches none. The query itself decides about each.
    pub(crate) async fn letters_to_match(&self, query: &Query) -> Result<Option<Document>> {
        let search = self.prepare_now(query).await?;
        Ok(match (&search.rows, &search.condition.part) {
            (Rows::Nothing, _) | (_, Part::Never) => None,
            (Rows::Letters(ids), _) => {
                let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
                Some(doc! { "_id": { "$in": ids }, "lazaret.number": { "$gte": 1_i64 } })
            }
            (Rows::Along(along), part) => Some(along.filter(None, i64::MAX, part)),
        })
    }

    pub(crate) async fn search(
        &self,
        query: &Query,
        after: Option<&str>,
        limit: usize,
    ) -> Result<LettersPage> {
        let before = after.map_or(Ok(i64::MAX), parse_cursor)?;
        let _turn = self.db().turn_to_search().await?;
        let search = self.prepare(query).await?;
        let limit = limit.max(1);
        match (&search.rows, &search.condition.part) {
            (Rows::Nothing, _) | (_, Part::Never) => Ok(LettersPage { letters: Vec::new(), next: None }),
            (Rows::Letters(ids), _) => self.page_of_ids(&search, ids, before, limit).await,
            (Rows::Along(along), _) => Box::pin(self.page_along(&search, along, before, limit)).await,
        }
    }

    /// A page of letters that the query names.
    async fn page_of_ids(
        &self,
        search: &Search<'_>,
        ids: &[LetterId],
        before: i64,
        limit: usize,
    ) -> Result<LettersPage> {
        let mut found: Vec<(u64, Letter)> = Vec::new();
        for (number, letter) in self.numbered_letters(ids).await? {
            if int(number) < before && search.query.matches(&letter, search.now) {
                found.push((number, letter));
            }
        }
        found.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).map(|(number, _)| number.to_string());
        Ok(LettersPage { letters: found.into_iter().map(|(_, letter)| letter).collect(), next })
    }

    /// Letters by their ids, with their numbers, in no order.
    async fn numbered_letters(&self, ids: &[LetterId]) -> Result<Vec<(u64, Letter)>> {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let found: Vec<RawDocumentBuf> = by_ids(&self.db().letters, &ids, whole()).await?;
        let mut letters = Vec::with_capacity(found.len());
        // The collection may hold documents of others.
        for document in found.into_iter().filter(|found| found.get_document("lazaret").is_ok()) {
            let held = self.hydrate(decode::<LetterDoc>(document)?).await?;
            letters.extend(held.map(|held| (held.number, held.letter)));
        }
        Ok(letters)
    }

    /// A page of letters along an index.
    async fn page_along(
        &self,
        search: &Search<'_>,
        along: &Along,
        before: i64,
        limit: usize,
    ) -> Result<LettersPage> {
        let end = match search.bound(LOOKED_AT) {
            Some(most) => self.end_of_part(along, before, most).await?,
            None => None,
        };
        let filter = along.filter(end, before, &search.condition.part);
        // Letters that match are read again, whole. If the server decides alone, there are no others.
        let is_exact = search.condition.exact;
        let is_light = !is_exact && !search.query.needs_payload();
        let fields = if is_light { without_payload() } else { whole() };
        let most = is_exact.then(|| int(limit as u64));
        let found = self.db().letters.rows(move |letters| async move {
            let found = letters.find(filter).projection(fields).sort(Along::order());
            found.optional(most, |found, most| found.limit(most)).await
        });
        let mut found = found.await.map_err(reading)?;
        let (mut letters, mut read, mut last) = (Vec::new(), 0, before);
        while letters.len() < limit {
            let Some(document) = found.next().await.map_err(reading)? else { break };
            let doc: LetterDoc = decode(document)?;
            (read, last) = (read + 1, doc.lazaret.number.unwrap_or(last));
            let letter = self.hydrate(doc).await?.map(|held| held.letter);
            letters.extend(letter.filter(|letter| search.query.matches(letter, search.now)));
        }
        // One that was purged meanwhile is read and not returned.
        let is_full = letters.len() >= limit || is_exact && read >= limit;
        if is_light {
            letters = self.read_whole(letters).await?;
        }
        let next = if is_full { self.goes_on(along, last).await?.then_some(last) } else { end };
        Ok(LettersPage { letters, next: next.map(|number| number.to_string()) })
    }

    /// The same letters with all they have. One that was purged meanwhile is left out.
    async fn read_whole(&self, letters: Vec<Letter>) -> Result<Vec<Letter>> {
        let ids: Vec<LetterId> = letters.iter().map(|letter| letter.id).collect();
        let mut whole = self.numbered_letters(&ids).await?;
        whole.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        Ok(whole.into_iter().map(|(_, letter)| letter).collect())
    }

    /// The number of the last letter of a part of an index with so many letters; `None` if there are not as many.
    async fn end_of_part(&self, along: &Along, before: i64, letters: u64) -> Result<Option<i64>> {
        let filter = along.filter(None, before, &Part::Always);
        let found = self.db().letters.call(move |of| async move {
            let found = of.find_one(filter).projection(Along::number_only()).sort(Along::order());
            found.skip(letters - 1).await
        });
        let found = found.await.map_err(reading)?.map(decode::<NumberDoc>).transpose()?;
        Ok(found.map(|found| found.lazaret.number))
    }

    /// Whether there are letters behind this one along an index.
    async fn goes_on(&self, along: &Along, last: i64) -> Result<bool> {
        let filter = along.filter(None, last, &Part::Always);
        let next: Vec<NumberDoc> =
            list_fields(&self.db().letters, filter, Along::number_only(), Along::order(), 1).await?;
        Ok(!next.is_empty())
    }

    /// The number of letters that match: exact if few letters have to be looked at.
    pub(crate) async fn count_matching(&self, query: &Query) -> Result<Matches> {
        if let Some(letters) = self.counted_by_state(query).await? {
            return Ok(Matches { letters, exact: true });
        }
        if let Some(matches) = self.counted_by_server(query).await? {
            return Ok(matches);
        }
        let (mut letters, mut after) = (0, None);
        for _ in 0..COUNT_PAGES {
            let page = self.search(query, after.as_deref(), COUNT_PAGE).await?;
            letters += page.letters.len() as u64;
            after = page.next;
            if after.is_none() {
                return Ok(Matches { letters, exact: true });
            }
        }
        Ok(Matches { letters, exact: false })
    }

    /// The count of a query that asks for no more than queue, consumer and state.
    async fn counted_by_state(&self, query: &Query) -> Result<Option<u64>> {
        let asks_no_more = |queue: &QueueName| query.matches_all_of(queue, LetterState::Dead).is_some();
        if !asks_no_more(&QueueName::of("", "")) {
            return Ok(None);
        }
        let _turn = self.db().turn_to_search().await?;
        self.catch_up().await?;
        let mut letters = 0;
        for (queue, counts) in self.counted(None).await? {
            let matching = |state: &&LetterState| query.matches_all_of(&queue, **state) == Some(true);
            letters += LetterState::ALL.iter().filter(matching).map(|state| counts.of(*state)).sum::<u64>();
        }
        Ok(Some(letters))
    }

    /// The count of a query about which the server can decide alone.
    async fn counted_by_server(&self, query: &Query) -> Result<Option<Matches>> {
        let _turn = self.db().turn_to_search().await?;
        let search = self.prepare(query).await?;
        let along = match (&search.rows, &search.condition.part) {
            (Rows::Nothing, _) | (_, Part::Never) => return Ok(Some(Matches { letters: 0, exact: true })),
            (Rows::Along(along), _) if search.condition.exact => along,
            _ => return Ok(None),
        };
        let end = match search.bound(COUNTED) {
            Some(most) => self.end_of_part(along, i64::MAX, most).await?,
            None => None,
        };
        let filter = along.filter(end, i64::MAX, &search.condition.part);
        let letters = count(&self.db().letters, filter, None).await?;
        Ok(Some(Matches { letters, exact: end.is_none() }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use mongodb::Client;

    use super::*;
    use crate::options::MongoStoreOptions;

    #[tokio::test]
    async fn searches_without_an_answer_leave_calls_to_others() {
        // Nobody answers there, for longer than the test takes.
        let uri = "mongodb://127.0.0.1:1/?directConnection=true&serverSelectionTimeoutMS=600000";
        let client = Client::with_uri_str(uri).await.unwrap();
        let options = MongoStoreOptions { connections: 10, ..MongoStoreOptions::default() };
        let store = MongoStore::unchecked(&client, "shop", options);
        let query = Query::parse("payload./a:1").unwrap();
        let mut searches: Vec<_> = (0..20).map(|_| Box::pin(store.search(&query, None, 10))).collect();
        assert!(searches.iter_mut().all(|search| search.now_or_never().is_none()));
        let other = store.db().letters.call(|_| async { Ok(()) });
        let made = tokio::time::timeout(Duration::from_secs(20), other).await;
        made.expect("searches have taken all calls").unwrap();
    }

    #[test]
    fn a_cursor_is_the_number_of_a_letter() {
        assert_eq!(parse_cursor("17").unwrap(), 17);
        for text in ["", "x", "-1", "017", "1.5"] {
            assert_eq!(parse_cursor(text).unwrap_err().kind(), ErrorKind::Invalid, "{text:?}");
        }
    }

    #[test]
    fn what_the_index_decides_alone_is_not_cut_into_parts() {
        let queues: [QueueName; 1] = ["a/b".into()];
        let bound = |text: &str| {
            let query = Query::parse(text).unwrap();
            let rows = Rows::of(&query, &queues);
            let now = Timestamp::UNIX_EPOCH;
            let condition = Condition::of(&query, &queues, now, &|term| rows.decide(term));
            Search { query: &query, now, rows, condition }.bound(LOOKED_AT)
        };
        for text in ["", "queue:a", "state:dead", "state:open", "seq:k", "queue:a/b state:dead"] {
            assert_eq!(bound(text), None, "{text:?}");
        }
        for text in ["attempts:>3", "state:dead type:x", "seq:k state:dead", "state:dead or attempts:1"] {
            assert_eq!(bound(text), Some(LOOKED_AT), "{text:?}");
        }
        assert_eq!(bound("payload./a:1"), Some(READ), "the server does not read payloads");
    }
}
