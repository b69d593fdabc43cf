//! Freezing: exclusions and order of the letters of a plan, once they are [selected](super::selecting).
//!
//! A reader decides, on one snapshot: the plan is as the letters were then, and no write waits for it. The writer
//! [inserts](super::drafting) what was decided, in pages.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lazaret_core::LetterState;
use lazaret_core::letter::LetterId;
use lazaret_core::store::rules;
use lazaret_core::store::{
    Action, Actor, Exclusion, PayloadDigest, Plan, PlanHasher, PlanId, PlanRequest, Result, Selection,
};
use rusqlite::{Connection, params};

use super::drafting::{self, Draft};
use super::selecting::{self, Candidate, Candidates};
use crate::error::{Fault, Work};
use crate::readers::View;
use crate::rows::{id_bytes, letter_id, state, time, unsigned};
use crate::store::SqliteStore;

/// Maximum number of changed letters that are selected again in the snapshot of the decision.
const CHANGED_LIMIT: usize = 16;
/// How often changed letters are selected again, in pages. Each time there are fewer.
const ROUNDS: usize = 4;
/// Number of letters between two checks whether the caller still waits.
const CHECK_EVERY: usize = 256;

/// Selects the letters of a plan, decides about them, and writes the plan.
pub(crate) async fn freeze(store: &SqliteStore, request: &PlanRequest, by: &Actor) -> Result<Plan> {
    drafting::delete_old(store).await?;
    let mut selected = store.select(request).await?;
    let mut round = 1;
    loop {
        let most = if round < ROUNDS { CHANGED_LIMIT } else { usize::MAX };
        match store.decide(request, by, selected, most).await? {
            Decision::Frozen(frozen) => return Draft::new(frozen).write(store).await,
            Decision::Changed(earlier, changed) => {
                selected = store.select_again(request, earlier, changed).await?;
            }
        }
        round += 1;
    }
}

/// A plan, and its letters in order.
pub(super) struct Frozen {
    pub(super) plan: Plan,
    pub(super) letters: Vec<FrozenLetter>,
}

/// A letter of a plan.
pub(super) struct FrozenLetter {
    /// The ordinal of the last letter of its sequence.
    pub(super) last: u64,
    pub(super) qid: i64,
    sid: i64,
    pub(super) sequence: Arc<str>,
    /// Its index in the sequence.
    place: i64,
    pub(super) id: LetterId,
    pub(super) state: LetterState,
    enqueued: i64,
    pub(super) digest: PayloadDigest,
}

/// The result of [`decide`].
pub(super) enum Decision {
    Frozen(Frozen),
    /// The letters in these rows have changed since they were selected.
    Changed(Candidates, Vec<i64>),
}

impl SqliteStore {
    /// Decides about selected letters, on a reader. Selects up to `most` letters again that have changed. One call looks at all letters of
    /// the plan, so it takes a turn like every other scan.
    pub(super) async fn decide(
        &self,
        request: &PlanRequest,
        by: &Actor,
        selected: Candidates,
        most: usize,
    ) -> Result<Decision> {
        let (request, by) = (request.clone(), by.clone());
        self.scan(selecting::FREEZE, move |view| decide(view, &request, &by, selected, most)).await
    }
}

fn decide(
    view: &View<'_>,
    request: &PlanRequest,
    by: &Actor,
    selected: Candidates,
    most: usize,
) -> Work<Decision> {
    let mut decided = Decided::new(&selected);
    let changed = decided.add(view, request, &selected.open)?;
    if changed.len() > most {
        return Ok(Decision::Changed(selected, changed));
    }
    if !changed.is_empty() {
        let now = selecting::among(view.connection, view.now, &request.selection, &changed)?;
        decided.count(Exclusion::Closed, now.closed);
        decided.add(view, request, &now.open)?;
    }
    // Its letters are in `decided` now.
    drop(selected);
    let mut sequences = decided.sequences();
    if request.action == Action::Retry {
        decided.exclude_behind(view, &mut sequences)?;
    }
    let followers = match request.action {
        Action::Park => 0,
        _ => followers(view, &sequences)?,
    };
    let (count, letters) = in_order(view.connection, sequences)?;
    let mut hasher = PlanHasher::new(request.action);
    letters.iter().for_each(|letter| hasher.add(letter.id, letter.digest));
    let counts = (letters.len() as u64, count as u64, followers, decided.excluded);
    // The row assigns its number.
    let plan = rules::plan(PlanId(0), request, counts, hasher.finish(), by, time(view.now))?;
    Ok(Decision::Frozen(Frozen { plan, letters }))
}

/// The letters of one sequence, in its order.
type InSequence = Vec<FrozenLetter>;

/// The decision about each letter on its own.
struct Decided {
    excluded: BTreeMap<Exclusion, u64>,
    included: Vec<FrozenLetter>,
}

impl Decided {
    fn new(selected: &Candidates) -> Self {
        let excluded =
            BTreeMap::from([(Exclusion::NotFound, selected.missing), (Exclusion::Closed, selected.closed)]);
        Self { excluded, included: Vec::with_capacity(selected.open.len()) }
    }

    fn count(&mut self, exclusion: Exclusion, letters: u64) {
        *self.excluded.entry(exclusion).or_default() += letters;
    }

    /// Adds the letters that are still as they were selected, or the reasons to exclude them. Returns the rows of the others.
    fn add(&mut self, view: &View<'_>, request: &PlanRequest, letters: &[Candidate]) -> Work<Vec<i64>> {
        let retry = request.action == Action::Retry;
        // A query with a state, or a list of ids, selects quarantined letters explicitly.
        let asked = match &request.selection {
            Selection::Query(query) => query.names_state(),
            Selection::Letters(_) => true,
        };
        let mut select = view.connection.prepare_cached(
            "SELECT qid, sid, sequence, idx, id, state, enqueued_at,
                 CASE WHEN ?3 THEN CASE WHEN json_valid(CAST(substr(body, 2) AS TEXT))
                     THEN json_extract(CAST(substr(body, 2) AS TEXT), '$.payload_left_out') ELSE 1 END END
             FROM letters WHERE lid = ?1 AND revision = ?2",
        )?;
        let mut in_operation = view.connection.prepare_cached(
            "SELECT 1 FROM items JOIN operations USING (plan)
             WHERE letter = ?1 AND outcome IS NULL AND ended_at IS NULL",
        )?;
        let mut changed = Vec::new();
        for (number, Candidate { lid, revision, digest }) in letters.iter().enumerate() {
            if number.is_multiple_of(CHECK_EVERY) {
                view.check()?;
            }
            let mut rows = select.query(params![lid, revision, retry])?;
            let Some(row) = rows.next()? else {
                changed.push(*lid);
                continue;
            };
            let Some(sid) = row.get::<_, Option<i64>>(1)? else {
                self.count(Exclusion::Closed, 1);
                continue;
            };
            let id = letter_id(row.get_ref(4)?.as_blob().map_err(rusqlite::Error::from)?)?;
            let (state, is_left_out) = (state(row.get(5)?)?, row.get::<_, Option<bool>>(7)?);
            let exclusion = if state == LetterState::Parked && request.action == Action::Park {
                Some(Exclusion::Already)
            } else if in_operation.exists([id_bytes(id)])? {
                Some(Exclusion::InOperation)
            } else if state == LetterState::Quarantined && retry && !asked {
                Some(Exclusion::Quarantined)
            } else if retry && is_left_out == Some(true) {
                Some(Exclusion::NoPayload)
            } else {
                None
            };
            if let Some(exclusion) = exclusion {
                self.count(exclusion, 1);
                continue;
            }
            self.included.push(FrozenLetter {
                last: 0,
                qid: row.get(0)?,
                sid,
                sequence: row.get(2)?,
                place: row.get(3)?,
                id,
                state,
                enqueued: row.get(6)?,
                digest: *digest,
            });
        }
        Ok(changed)
    }

    /// The included letters by sequence.
    fn sequences(&mut self) -> Vec<InSequence> {
        let mut letters = std::mem::take(&mut self.included);
        letters.sort_unstable_by_key(|letter| (letter.sid, letter.place));
        let mut sequences: Vec<InSequence> = Vec::new();
        for letter in letters {
            match sequences.last_mut() {
                Some(same) if same.last().is_some_and(|before| before.sid == letter.sid) => same.push(letter),
                _ => sequences.push(vec![letter]),
            }
        }
        sequences
    }

    /// Excludes letters behind an open letter outside of the plan (I2). Reads a sequence only up to the first such letter.
    fn exclude_behind(&mut self, view: &View<'_>, sequences: &mut Vec<InSequence>) -> Work<()> {
        let mut select =
            view.connection.prepare_cached("SELECT idx FROM letters WHERE sid = ?1 ORDER BY idx")?;
        for letters in &mut *sequences {
            view.check()?;
            let Some(sid) = letters.first().map(|first| first.sid) else { continue };
            let mut rows = select.query([sid])?;
            let mut before_gap = 0;
            while let Some(letter) = letters.get(before_gap)
                && let Some(row) = rows.next()?
                && row.get::<_, i64>(0)? == letter.place
            {
                before_gap += 1;
            }
            let behind = letters.len() - before_gap;
            letters.truncate(before_gap);
            self.count(Exclusion::Behind, behind as u64);
        }
        sequences.retain(|letters| !letters.is_empty());
        Ok(())
    }
}

/// Number of letters outside of the plan in its sequences, which may run after it.
fn followers(view: &View<'_>, sequences: &[InSequence]) -> Work<u64> {
    let mut select = view.connection.prepare_cached("SELECT count FROM sequences WHERE sid = ?1")?;
    let mut followers: u64 = 0;
    for letters in sequences {
        view.check()?;
        let Some(sid) = letters.first().map(|first| first.sid) else { continue };
        let mut rows = select.query([sid])?;
        if let Some(row) = rows.next()? {
            followers += unsigned(row.get(0)?)?.saturating_sub(letters.len() as u64);
        }
    }
    Ok(followers)
}

/// The number of sequences, and their letters in the order of the plan: sequences in the order in which their first letters were
/// enqueued, letters in the order of their sequence.
fn in_order(connection: &Connection, mut sequences: Vec<InSequence>) -> Work<(usize, Vec<FrozenLetter>)> {
    let mut select = connection.prepare_cached("SELECT qid, name FROM queues")?;
    let queues: rusqlite::Result<HashMap<i64, String>> =
        select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect();
    let queues = queues?;
    let name = |letter: &FrozenLetter| {
        let name = queues.get(&letter.qid).map(String::as_str);
        name.ok_or_else(|| Fault::Corrupt(format!("a letter of the unknown queue {}", letter.qid)))
    };
    for letters in &sequences {
        letters.first().map(name).transpose()?;
    }
    let key = |letters: &InSequence| {
        let first = letters.first()?;
        Some((first.enqueued, queues.get(&first.qid)?.as_str(), first.place, first.sid))
    };
    sequences.sort_unstable_by(|one, other| key(one).cmp(&key(other)));
    let count = sequences.len();
    let mut ordered = Vec::with_capacity(sequences.iter().map(Vec::len).sum());
    for mut letters in sequences {
        let last = (ordered.len() + letters.len()) as u64 - 1;
        letters.iter_mut().for_each(|letter| letter.last = last);
        ordered.append(&mut letters);
    }
    Ok((count, ordered))
}
