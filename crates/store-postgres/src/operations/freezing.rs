//! Freezing: which letters are in a plan. All of it sees the same state of the tables.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use lazaret_core::letter::LetterId;
use lazaret_core::query::Query;
use lazaret_core::store::rules::{Candidate, Freeze, Frozen, FrozenItem};
use lazaret_core::store::{
    Action, Actor, ErrorKind, PayloadDigest, Plan, PlanId, PlanRequest, Result, Selection, StoreError,
};
use lazaret_core::{Letter, Message, Position, QueueName, SequenceId};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::error::{Fault, Work};
use crate::store::{PostgresStore, first};
use crate::transaction::{Transaction, transaction};
use crate::values::{
    Columns, bound, letter_id, limit as rows_of, nanos, state, state_number, text, to_json, unsigned,
};

/// Maximum size of the letters that are read to match the query of a plan, in bytes (I7). Letters that are decided by their columns
/// are not read.
const READ_LIMIT: usize = 1 << 30;
/// Number of selected letters beyond the maximum of a plan, for those that are excluded because of others (I7).
const ROOM: u64 = 100_000;
/// Number of rows of one statement.
const PAGE: usize = 5000;

const DELETE_PLANS: &str = "WITH old AS (DELETE FROM plans WHERE plan IN (
        SELECT plan FROM plans WHERE NOT carried_out AND expires_at <= $1 ORDER BY expires_at LIMIT $2
        FOR UPDATE SKIP LOCKED) RETURNING plan)
    DELETE FROM items WHERE plan IN (SELECT plan FROM old)";
/// The payload is digested by the server, and stays there.
const CANDIDATES: &str =
    "SELECT l.id, q.name, l.sid, l.sequence, l.idx, l.state, l.enqueued_at, l.payload_left_out,
    sha256(p.payload) FROM letters l JOIN queues q ON q.qid = l.qid JOIN payloads p ON p.lid = l.lid
    WHERE l.lid = ANY($1)";
const BY_ID: &str = "SELECT l.lid, l.id, q.name FROM letters l JOIN queues q ON q.qid = l.qid
    WHERE l.id = ANY($1) AND (l.sid IS NOT NULL OR l.closed_at IS NOT NULL)";
const IN_OPERATION: &str = "SELECT i.letter FROM items i JOIN operations o ON o.plan = i.plan
    WHERE i.letter = ANY($1) AND i.outcome IS NULL AND o.ended_at IS NULL";
const PLACES: &str = "SELECT sid, idx FROM letters WHERE sid = ANY($1) ORDER BY sid, idx";
const INSERT_PLAN: &str = "INSERT INTO plans (action, query, letters, sequences, followers, excluded, hash, who, via, why,
    frozen_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6::text::json, $7, $8, $9, $10, $11, $12) RETURNING plan";
const INSERT_ITEMS: &str = "INSERT INTO items (plan, ordinal, last, qid, sequence, letter, state, digest)
    SELECT $1, u.ordinal, u.last, q.qid, u.sequence, u.letter, u.state, u.digest
    FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::uuid[], $7::smallint[], $8::bytea[])
    AS u (ordinal, last, queue, sequence, letter, state, digest) JOIN queues q ON q.name = u.queue";

/// Selected letters, as far as a plan needs them.
#[derive(Default)]
struct Selected {
    letters: Vec<Letter>,
    digests: HashMap<LetterId, PayloadDigest>,
    /// The rows of their open sequences.
    sids: HashMap<(QueueName, SequenceId), i64>,
    /// Number of ids without a letter.
    missing: usize,
}

impl Selected {
    fn add(&mut self, row: &Row) -> Work<()> {
        let mut c = Columns::of(row);
        let (id, queue) = (letter_id(c.get()?)?, QueueName::from(c.text()?));
        let (sid, sequence) = (c.get::<Option<i64>>()?, SequenceId::new(c.arc_text()?));
        let (index, state, enqueued_at) = (c.unsigned()?, state(c.get()?)?, c.time()?);
        let (payload_left_out, digest): (bool, Option<Vec<u8>>) = (c.get()?, c.get()?);
        // The exclusions and the order depend on these fields alone.
        let message = Message::new("", "", Position::new(0, 0)).into();
        let letter = Letter::new(queue.clone(), sequence.clone(), message, enqueued_at);
        self.letters.push(Letter { id, index, state, payload_left_out, ..letter });
        let digest = digest.and_then(|bytes| bytes.try_into().ok());
        self.digests.insert(id, digest.map_or_else(|| PayloadDigest::of(None), PayloadDigest::from_bytes));
        if let Some(sid) = sid {
            self.sids.insert((queue, sequence), sid);
        }
        Ok(())
    }
}

fn refuse<T>(context: String) -> Work<T> {
    Err(Fault::Refused(StoreError::not_done(ErrorKind::Invalid, "freeze", context)))
}

impl PostgresStore {
    pub(crate) async fn freeze_plan(&self, request: &PlanRequest, by: &Actor) -> Result<Plan> {
        let _turn = self.turn_to_scan("freeze").await?;
        Ok(transaction!(self, "freeze", begin_snapshot, |tx| tx.freeze(request, by)))
    }
}

impl Transaction<'_> {
    async fn freeze(&mut self, request: &PlanRequest, by: &Actor) -> Work<Plan> {
        self.read_clock().await?;
        let old = self.now().checked_sub(Plan::RETENTION).map_or(i64::MIN, nanos);
        self.query(DELETE_PLANS, &[&old, &rows_of(Plan::DELETED_PER_FREEZE)]).await?;
        let (rows, missing) = match &request.selection {
            Selection::Query(query) => (self.select_matching(request, query).await?, 0),
            Selection::Letters(letters) => self.select_named(letters).await?,
        };
        let mut selected = Selected { missing, ..Selected::default() };
        for page in rows.chunks(PAGE) {
            for row in self.query(CANDIDATES, &[&page]).await? {
                selected.add(&row)?;
            }
        }
        let Frozen { mut plan, items } = self.decide(request, &selected, by).await?;
        plan.id = self.insert_plan(&plan).await?;
        for (page, items) in items.chunks(PAGE).enumerate() {
            self.insert_items(plan.id, page * PAGE, items).await?;
        }
        Ok(plan)
    }

    /// Asks the rules which of the letters are in the plan, and in which order.
    async fn decide(&self, request: &PlanRequest, selected: &Selected, by: &Actor) -> Work<Frozen> {
        let in_operation = self.in_operations(&selected.letters).await?;
        let candidates = selected
            .letters
            .iter()
            .map(|letter| Some(Candidate { letter, in_operation: in_operation.contains(&letter.id) }))
            .chain(std::iter::repeat_n(None, selected.missing));
        let mut freeze = Freeze::new(request, candidates);
        let sids: Vec<i64> = selected.sids.values().copied().collect();
        let places =
            if request.action == Action::Park { BTreeMap::new() } else { self.places(&sids).await? };
        let of = |queue: &QueueName, sequence: &SequenceId| -> &[u64] {
            let sid = selected.sids.get(&(queue.clone(), sequence.clone()));
            sid.and_then(|sid| places.get(sid)).map_or(&[], Vec::as_slice)
        };
        if request.action == Action::Retry {
            freeze = freeze.without_gaps(|queue, sequence| of(queue, sequence).iter().copied());
        }
        if request.action != Action::Park {
            freeze = freeze.with_followers(|queue, sequence| of(queue, sequence).len() as u64);
        }
        let digest = |letter: &Letter| selected.digests.get(&letter.id).copied();
        let digest = |letter: &Letter| digest(letter).unwrap_or_else(|| PayloadDigest::of(None));
        // The row assigns the number of the plan.
        Ok(freeze.finish_with(PlanId(0), request, by, digest, self.now())?)
    }

    async fn select_matching(&mut self, request: &PlanRequest, query: &Query) -> Work<Vec<i64>> {
        let search = self.search(query).await?;
        let (mut rows, mut read, mut before) = (Vec::new(), 0_usize, Some(i64::MAX));
        while let Some(row) = before {
            let (page, scan) = self.matching_rows(&search, row).await?;
            rows.extend(page);
            read = read.saturating_add(scan.bytes);
            before = scan.end;
            if rows.len() as u64 > request.max_letters.saturating_add(ROOM) {
                let most = request.max_letters;
                return refuse(format!(
                    "the plan has more than {} letters, the limit is {most}",
                    rows.len() - 1
                ));
            }
            if read > READ_LIMIT {
                return refuse(format!(
                    "the query has to read more than {} MiB of letters; restrict it by group, reason, type, state or time",
                    READ_LIMIT >> 20
                ));
            }
        }
        Ok(rows)
    }

    /// The rows of these letters, and how many there are not.
    async fn select_named(&self, letters: &[(QueueName, LetterId)]) -> Work<(Vec<i64>, usize)> {
        let letters: BTreeSet<&(QueueName, LetterId)> = letters.iter().collect();
        let mut rows = Vec::with_capacity(letters.len());
        let ids: Vec<Uuid> = letters.iter().map(|(_, id)| id.as_uuid()).collect();
        for page in ids.chunks(PAGE) {
            for row in self.query(BY_ID, &[&page]).await? {
                let mut c = Columns::of(&row);
                let (lid, id, queue) = (c.get::<i64>()?, letter_id(c.get()?)?, QueueName::from(c.text()?));
                if letters.contains(&(queue, id)) {
                    rows.push(lid);
                }
            }
        }
        let missing = letters.len() - rows.len();
        Ok((rows, missing))
    }

    /// Those of the letters that an operation which is not over has still before it.
    async fn in_operations(&self, letters: &[Letter]) -> Work<HashSet<LetterId>> {
        let ids: Vec<Uuid> = letters.iter().map(|letter| letter.id.as_uuid()).collect();
        let mut found = HashSet::new();
        for page in ids.chunks(PAGE) {
            for row in self.query(IN_OPERATION, &[&page]).await? {
                found.insert(letter_id(row.try_get(0)?)?);
            }
        }
        Ok(found)
    }

    /// The indexes of the open letters of sequences, in order.
    async fn places(&self, sids: &[i64]) -> Work<BTreeMap<i64, Vec<u64>>> {
        let mut places: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
        for page in sids.chunks(PAGE) {
            for row in self.query(PLACES, &[&page]).await? {
                places.entry(row.try_get(0)?).or_default().push(unsigned(row.try_get(1)?)?);
            }
        }
        Ok(places)
    }

    async fn insert_plan(&self, plan: &Plan) -> Work<PlanId> {
        let Actor { who, via, why } = &plan.by;
        let rows = self
            .query(
                INSERT_PLAN,
                &[
                    &plan.action.as_str(),
                    &plan.query.as_deref().map(text),
                    &bound(plan.letters),
                    &bound(plan.sequences),
                    &bound(plan.followers),
                    &to_json(&plan.excluded, "the exclusions of a plan")?,
                    &plan.hash,
                    &text(who),
                    &text(via),
                    &text(why),
                    &nanos(plan.frozen_at),
                    &nanos(plan.expires_at),
                ],
            )
            .await?;
        let number = first(&rows, |row| unsigned(row.try_get(0)?))?;
        Ok(PlanId(number.ok_or_else(|| Fault::Corrupt("a plan got no number".to_owned()))?))
    }

    async fn insert_items(&self, plan: PlanId, from: usize, items: &[FrozenItem]) -> Work<()> {
        let ordinals: Vec<i64> = (from..).take(items.len()).map(|ordinal| bound(ordinal as u64)).collect();
        let last: Vec<i64> = items.iter().map(|item| bound(item.last)).collect();
        let queues: Vec<_> = items.iter().map(|item| text(item.queue.as_str())).collect();
        let sequences: Vec<_> = items.iter().map(|item| text(item.sequence.as_str())).collect();
        let letters: Vec<Uuid> = items.iter().map(|item| item.letter.as_uuid()).collect();
        let states: Vec<i16> = items.iter().map(|item| state_number(item.state)).collect();
        let digests: Vec<&[u8]> = items.iter().map(|item| item.digest.as_bytes().as_slice()).collect();
        let plan = bound(plan.0);
        self.query(
            INSERT_ITEMS,
            &[&plan, &ordinals, &last, &queues, &sequences, &letters, &states, &digests],
        )
        .await?;
        Ok(())
    }
}
