//! Groups, and lists of groups and queues.

use lazaret_core::store::rules::{GroupChanges, GroupRow, LatestFailure};
use lazaret_core::store::{
    Counts, ErrorKind, Group, GroupId, GroupsPage, GroupsRequest, QueueSummary, Result, StoreError, Trend,
};
use lazaret_core::{Fingerprint, QueueName, Reason};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::error::{Fault, Work};
use crate::group_expiry::Key;
use crate::group_notes::with_notes;
use crate::store::{PostgresStore, first};
use crate::values::{Columns, bound, from_json, limit as rows_of, nanos, text, to_json, unsigned};

/// The columns of a group for [`read_group`]: the row with the alias `g`, which may be missing.
macro_rules! select_group {
    ($more:literal, $from:literal) => {
        concat!(
            "SELECT coalesce(g.reason, ''), coalesce(g.error_type, ''), coalesce(g.message, ''), coalesce(g.sequences, 0), \
             coalesce(g.behind, 0), coalesce(g.first_seen, 0), coalesce(g.last_seen, 0), coalesce(g.trend::text, ''), \
             coalesce(g.by_state, '{}')",
            $more,
            " ",
            $from
        )
    };
}
pub(crate) use select_group;

/// The first open letter of a group is its oldest: numbers follow the order of arrival. Its index has hashes of groups.
pub(crate) const ONE: &str = select_group!(
    ", n.notes, (SELECT l.enqueued_at FROM letters l WHERE l.qid = k.qid AND l.cause_group = k.fingerprint
        AND l.sid IS NOT NULL AND hashtextextended(l.cause_group, 0) = hashtextextended(k.fingerprint, 0)
        ORDER BY l.lid LIMIT 1)",
    "FROM (SELECT $1::bigint AS qid, $2::text COLLATE \"C\" AS fingerprint) k
     LEFT JOIN failure_groups g ON g.qid = k.qid AND g.fingerprint = k.fingerprint
     CROSS JOIN LATERAL (SELECT json_agg(json_build_array(x.at, x.changes) ORDER BY x.number)::text AS notes
         FROM group_notes x WHERE x.qid = k.qid AND x.fingerprint = k.fingerprint) n"
);
const PAGE: &str = select_group!(
    ", n.notes, (SELECT l.enqueued_at FROM letters l WHERE l.qid = k.qid AND l.cause_group = k.fingerprint
        AND l.sid IS NOT NULL AND hashtextextended(l.cause_group, 0) = hashtextextended(k.fingerprint, 0)
        ORDER BY l.lid LIMIT 1), q.name, k.qid, k.fingerprint, o.open",
    "FROM failure_groups g
     FULL JOIN (SELECT x.qid, x.fingerprint, sum(x.open)::bigint AS open,
             json_agg(json_build_array(x.at, x.changes) ORDER BY x.number)::text AS notes
         FROM group_notes x WHERE $1::bigint IS NULL OR x.qid = $1 GROUP BY x.qid, x.fingerprint) n ON n.qid = g.qid AND n.fingerprint = g.fingerprint
     CROSS JOIN LATERAL (SELECT coalesce(g.qid, n.qid) AS qid, coalesce(g.fingerprint, n.fingerprint) AS fingerprint) k
     CROSS JOIN LATERAL (SELECT (coalesce((SELECT sum(of_state) FROM unnest(g.by_state[1:5]) AS of_state), 0)
         + coalesce(n.open, 0))::bigint AS open) o
     JOIN queues q ON q.qid = k.qid
     WHERE ($1 IS NULL OR k.qid = $1) AND o.open >= $2
     AND (o.open < $3 OR (o.open = $3 AND (k.qid, k.fingerprint) > ($4, $5)))
     ORDER BY o.open DESC, k.qid, k.fingerprint LIMIT $6"
);
/// The oldest letter is looked for by queue and number, not by number alone: only the index of open letters has this order. By the primary
/// key, which a server that takes closed letters for evenly spread prefers, all that were closed before it would be read.
/// Letters that wait (4) do not expire.
pub(crate) const QUEUES: &str =
    "SELECT q.name, sum(c.sequences)::bigint, sum(c.retrying)::bigint, sum(c.dead)::bigint,
    sum(c.parked)::bigint, sum(c.quarantined)::bigint, sum(c.waiting)::bigint, sum(c.resolved)::bigint,
    sum(c.evicted)::bigint, sum(c.skipped)::bigint, sum(c.expired)::bigint,
    (SELECT l.enqueued_at FROM letters l WHERE l.qid >= q.qid AND l.qid <= q.qid AND l.sid IS NOT NULL
        ORDER BY l.qid, l.lid LIMIT 1),
    (SELECT l.expires_at FROM letters l WHERE l.qid >= q.qid AND l.qid <= q.qid AND l.sid IS NOT NULL
        AND l.expires_at IS NOT NULL AND l.state <> 4 ORDER BY l.qid, l.expires_at, l.lid LIMIT 1)
    FROM queues q JOIN counts c ON c.qid = q.qid GROUP BY q.qid ORDER BY q.name";

/// Reads the row of a group from its columns; `None` if they are those of a row that is missing.
pub(crate) fn read_group(c: &mut Columns<'_>) -> Work<Option<GroupRow>> {
    let (reason, error_type, message) = (c.text()?, c.text()?, c.text()?);
    let (sequences, behind, first_seen, last_seen) = (c.unsigned()?, c.unsigned()?, c.time()?, c.time()?);
    let (trend, counts): (String, Vec<i64>) = (c.get()?, c.get()?);
    if counts.is_empty() {
        return Ok(None);
    }
    let mut by_state = [0; 9];
    if counts.len() != by_state.len() {
        return Err(Fault::Corrupt(format!("a group has the counters of {} states", counts.len())));
    }
    for (count, stored) in by_state.iter_mut().zip(counts) {
        *count = unsigned(stored)?;
    }
    let reason = Reason::new(&*reason).unwrap_or_else(|_| Reason::from_words(&reason));
    let trend: Trend = from_json(&trend, "the trend of a group")?;
    let latest = LatestFailure { reason, error_type, message }.into();
    Ok(Some(GroupRow { latest, by_state, sequences, behind, first_seen, last_seen, trend }))
}

/// The columns of groups to write, an array each.
#[derive(Default)]
pub(crate) struct GroupArrays {
    qid: Vec<i64>,
    fingerprint: Vec<String>,
    reason: Vec<String>,
    error_type: Vec<String>,
    message: Vec<String>,
    sequences: Vec<i64>,
    behind: Vec<i64>,
    first_seen: Vec<i64>,
    last_seen: Vec<i64>,
    trend: Vec<String>,
    by_state: Vec<String>,
}

impl GroupArrays {
    pub(crate) const fn is_empty(&self) -> bool {
        self.qid.is_empty()
    }

    pub(crate) fn push(&mut self, qid: i64, fingerprint: String, row: &GroupRow) -> Work<()> {
        self.qid.push(qid);
        self.fingerprint.push(fingerprint);
        self.reason.push(text(row.latest.reason.as_str()).into_owned());
        self.error_type.push(text(&row.latest.error_type).into_owned());
        self.message.push(text(&row.latest.message).into_owned());
        self.sequences.push(bound(row.sequences));
        self.behind.push(bound(row.behind));
        self.first_seen.push(nanos(row.first_seen));
        self.last_seen.push(nanos(row.last_seen));
        self.trend.push(to_json(&row.trend, "a trend")?);
        // An array of arrays has one length for all; as text they can be passed in one.
        self.by_state.push(format!("{{{}}}", row.by_state.map(|count| count.to_string()).join(",")));
        Ok(())
    }

    pub(crate) fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        vec![
            &self.qid,
            &self.fingerprint,
            &self.reason,
            &self.error_type,
            &self.message,
            &self.sequences,
            &self.behind,
            &self.first_seen,
            &self.last_seen,
            &self.trend,
            &self.by_state,
        ]
    }
}

/// A cursor in the list of groups: the number of open letters of the last one returned, and its name.
#[derive(Clone)]
struct Place {
    open: i64,
    qid: i64,
    fingerprint: String,
}

impl Place {
    fn text(&self) -> String {
        format!("{}/{}/{}", self.open, self.qid, self.fingerprint)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut parts = text.splitn(3, '/');
        let mut number = || parts.next().and_then(|part| part.parse().ok());
        let numbers = (number(), number());
        let fingerprint = parts.next().filter(|part| part.parse::<Fingerprint>().is_ok());
        match (numbers, fingerprint) {
            ((Some(open), Some(qid)), Some(fingerprint)) => {
                Ok(Self { open, qid, fingerprint: fingerprint.to_owned() })
            }
            _ => {
                let context = format!("invalid cursor {text:?}");
                Err(StoreError::not_done(ErrorKind::Invalid, "groups", context))
            }
        }
    }
}

impl PostgresStore {
    /// A page of groups, those with the most open letters first. Reads all groups: they are few, and their counters change too often for
    /// an index.
    pub(crate) async fn list_groups(&self, request: &GroupsRequest) -> Result<GroupsPage> {
        const GROUPS: &str = "groups";
        let limit = request.limit.max(1);
        let after = request.after.as_deref().map(Place::parse).transpose()?;
        let start = Place { open: i64::MAX, qid: i64::MIN, fingerprint: String::new() };
        let Place { open, qid, fingerprint } = after.unwrap_or(start);
        let of = match &request.queue {
            None => None,
            Some(name) => match self.find_queue(GROUPS, name).await? {
                Some(queue) => Some(queue.qid),
                None => return Ok(GroupsPage { groups: Vec::new(), next: None }),
            },
        };
        let (least, wanted) = (i64::from(!request.closed), rows_of(limit.saturating_add(1)));
        // The server reads and sorts all groups for a page.
        let _turn = self.turn_to_scan(GROUPS).await?;
        let rows = self.ask(GROUPS, PAGE, &[&of, &least, &open, &qid, &fingerprint, &wanted]).await?;
        let name = |row: &Row| -> Work<Key> { Ok((row.try_get(12)?, row.try_get(13)?)) };
        let names: Work<Vec<Key>> = rows.iter().take(limit).map(name).collect();
        let names = names.map_err(|fault| fault.into_error(GROUPS))?;
        let expiries = self.group_expiries(GROUPS, &names).await?;
        let now = self.now(GROUPS).await?;
        let read = |rows: &[Row]| -> Work<GroupsPage> {
            let mut groups = Vec::with_capacity(rows.len());
            for row in rows.iter().take(limit) {
                let mut c = Columns::of(row);
                let group = current(&mut c)?;
                let (oldest, queue) = (c.moment()?, QueueName::from(c.text()?));
                let place = Place { qid: c.get()?, fingerprint: c.get()?, open: c.get()? };
                // Its last letter was purged, and the note about it not added yet.
                let Some(group) = group else { continue };
                let fingerprint = place
                    .fingerprint
                    .parse()
                    .map_err(|_| Fault::Corrupt(format!("failed to decode group {}", place.fingerprint)))?;
                let next_expiry = expiries.get(&(place.qid, place.fingerprint)).copied();
                groups.push(group.to_group(GroupId { queue, fingerprint }, oldest, next_expiry, now));
            }
            let last = rows.get(limit - 1).filter(|_| rows.len() > limit);
            let place = |row: &Row| -> Work<Place> {
                Ok(Place { qid: row.try_get(12)?, fingerprint: row.try_get(13)?, open: row.try_get(14)? })
            };
            Ok(GroupsPage { groups, next: last.map(place).transpose()?.map(|place| place.text()) })
        };
        read(&rows).map_err(|fault| fault.into_error(GROUPS))
    }

    pub(crate) async fn group_of(&self, id: &GroupId) -> Result<Option<Group>> {
        const GROUP: &str = "group";
        let Some(queue) = self.find_queue(GROUP, &id.queue).await? else { return Ok(None) };
        let name = (queue.qid, id.fingerprint.to_string());
        let rows = self.ask(GROUP, ONE, &[&name.0, &name.1]).await?;
        let expiries = self.group_expiries(GROUP, std::slice::from_ref(&name)).await?;
        let now = self.now(GROUP).await?;
        let read = |row: &Row| -> Work<Option<Group>> {
            let mut c = Columns::of(row);
            let group = current(&mut c)?;
            let oldest = c.moment()?;
            let next_expiry = expiries.get(&name).copied();
            Ok(group.map(|group| group.to_group(id.clone(), oldest, next_expiry, now)))
        };
        first(&rows, read).map(Option::flatten).map_err(|fault| fault.into_error(GROUP))
    }

    /// All queues that have ever held a letter: only those have counters.
    pub(crate) async fn summaries(&self) -> Result<Vec<QueueSummary>> {
        let rows = self.ask("queues", QUEUES, &[]).await?;
        let read = |row: &Row| -> Work<QueueSummary> {
            let mut c = Columns::of(row);
            let queue = QueueName::from(c.text()?);
            let counts = read_counts(&mut c)?;
            Ok(QueueSummary { queue, counts, oldest: c.moment()?, next_expiry: c.moment()? })
        };
        rows.iter().map(read).collect::<Work<_>>().map_err(|fault| fault.into_error("queues"))
    }
}

/// The sums of the counters of a queue.
pub(crate) fn read_counts(c: &mut Columns<'_>) -> Work<Counts> {
    let sequences = c.unsigned()?;
    let mut by_state = [0; 9];
    for count in &mut by_state {
        *count = c.unsigned()?;
    }
    Ok(Counts { sequences, by_state })
}

/// A group as it is now: its row, and the notes about it; `None` if it has no letters.
fn current(c: &mut Columns<'_>) -> Work<Option<GroupRow>> {
    let row = read_group(c)?;
    let notes: Option<String> = c.get()?;
    let notes: Vec<(i64, GroupChanges)> =
        notes.map_or(Ok(Vec::new()), |notes| from_json(&notes, "the notes of a group"))?;
    Ok(with_notes(row, &notes))
}
