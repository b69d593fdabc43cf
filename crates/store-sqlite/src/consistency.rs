//! Recomputes all counters from the letters and compares them, for tests.

use std::collections::BTreeMap;

use lazaret_core::store::rules::Schedule;
use lazaret_core::{LetterState, Timestamp};
use rusqlite::Connection;

use crate::letters::{OpenSequenceRow, select_sequence};
use crate::rows::{Body, nanos, state};
use crate::write_cache::groups::{read_group, select_group};
use crate::write_cache::read_counts;

/// The sums over the letters of a group.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums {
    by_state: [u64; 9],
    sequences: u64,
    behind: u64,
}

struct Row {
    qid: i64,
    sid: Option<i64>,
    index: i64,
    state: LetterState,
    gid: Option<i64>,
    purged: bool,
}

/// Panics if a counter or marker in the file differs from the letters.
pub(crate) fn check(connection: &Connection) {
    let letters = letters(connection);
    check_queues(connection, &letters);
    let mut groups: BTreeMap<i64, Sums> = BTreeMap::new();
    for letter in letters.iter().filter(|letter| !letter.purged) {
        if let Some(gid) = letter.gid {
            groups.entry(gid).or_default().by_state[letter.state as usize] += 1;
        }
    }
    check_sequences(connection, &letters, &mut groups);
    let mut select = connection.prepare(select_group!("")).unwrap();
    let mut rows = select.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let (gid, group) = read_group(row).unwrap();
        let row = group.row;
        let stored = Sums { by_state: row.by_state, sequences: row.sequences, behind: row.behind };
        assert_eq!(Some(stored), groups.remove(&gid), "group {gid}, {}", group.fingerprint);
        assert!(row.trend.at(Timestamp::MIN).iter().sum::<u64>() > 0, "letters entered group {gid}");
    }
    assert!(groups.is_empty(), "letters of missing groups: {groups:?}");
}

/// All letters, with their markers verified.
fn letters(connection: &Connection) -> Vec<Row> {
    let sql = "SELECT qid, sid, idx, state, gid, closed_at, body, lid,
               (SELECT fingerprint FROM groups WHERE groups.gid = letters.gid AND groups.qid = letters.qid),
               (SELECT count(*) FROM payloads WHERE payloads.lid = letters.lid),
               edits, (SELECT count(*) FROM edits WHERE edits.lid = letters.lid) FROM letters";
    let mut select = connection.prepare(sql).unwrap();
    let mut rows = select.query([]).unwrap();
    let mut letters = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        let (sid, closed_at): (Option<i64>, Option<i64>) = (row.get(1).unwrap(), row.get(5).unwrap());
        let (state, lid) = (state(row.get(3).unwrap()).unwrap(), row.get::<_, i64>(7).unwrap());
        assert_eq!(sid.is_some(), state.is_open(), "letter {lid}");
        assert!(sid.is_none() || closed_at.is_none(), "letter {lid} is open and closed");
        let purged = sid.is_none() && closed_at.is_none();
        assert_eq!(row.get::<_, bool>(9).unwrap(), !purged, "the payload of letter {lid}");
        let edits: (i64, i64) = (row.get(10).unwrap(), row.get(11).unwrap());
        assert_eq!(edits.0, edits.1, "the edits of letter {lid}");
        assert!(!purged || edits.0 == 0, "the edits of the purged letter {lid}");
        let body = Body::decode(row.get_ref(6).unwrap().as_blob().unwrap()).unwrap();
        assert!(!body.has_edits(), "the body of letter {lid}");
        let cause = body.cause.map(|cause| cause.fingerprint.to_string());
        assert_eq!(row.get::<_, Option<String>>(8).unwrap(), cause, "the group of letter {lid}");
        let (qid, index, gid) = (row.get(0).unwrap(), row.get(2).unwrap(), row.get(4).unwrap());
        letters.push(Row { qid, sid, index, state, gid, purged });
    }
    letters
}

fn check_queues(connection: &Connection, letters: &[Row]) {
    let mut select = connection
        .prepare(
            "SELECT qid, sequences, (SELECT count(*) FROM sequences s WHERE s.qid = q.qid) FROM queues q",
        )
        .unwrap();
    let mut rows = select.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let qid: i64 = row.get(0).unwrap();
        assert_eq!(row.get::<_, i64>(1).unwrap(), row.get::<_, i64>(2).unwrap(), "sequences of queue {qid}");
        let mut counts = [0; 9];
        for letter in letters.iter().filter(|letter| letter.qid == qid && !letter.purged) {
            counts[letter.state as usize] += 1;
        }
        assert_eq!(read_counts(connection, qid).unwrap(), counts, "letters of queue {qid}");
    }
}

/// Verifies the counters of each sequence, and adds them to the group of its head.
fn check_sequences(connection: &Connection, letters: &[Row], groups: &mut BTreeMap<i64, Sums>) {
    let mut sequences: BTreeMap<i64, BTreeMap<i64, Option<i64>>> = BTreeMap::new();
    for letter in letters {
        if let Some(sid) = letter.sid {
            sequences.entry(sid).or_default().insert(letter.index, letter.gid);
        }
    }
    let mut select = connection.prepare("SELECT sid, count, head_idx, head_gid FROM sequences").unwrap();
    let mut rows = select.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let sid: i64 = row.get(0).unwrap();
        let letters = sequences.remove(&sid).unwrap_or_default();
        let (index, gid) = letters.first_key_value().unwrap();
        let found: (i64, i64, Option<i64>) = (row.get(1).unwrap(), row.get(2).unwrap(), row.get(3).unwrap());
        assert_eq!(found, (letters.len() as i64, *index, *gid), "sequence {sid}");
        if let Some(gid) = gid {
            let sums = groups.entry(*gid).or_default();
            sums.sequences += 1;
            sums.behind += letters.len() as u64 - 1;
        }
    }
    assert!(sequences.is_empty(), "letters of missing sequences: {sequences:?}");
    check_schedules(connection);
}

/// Verifies that each sequence stands where the scheduler looks for it.
fn check_schedules(connection: &Connection) {
    let mut select = connection.prepare(select_sequence!("FROM sequences ORDER BY sid")).unwrap();
    let mut rows = select.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let open = OpenSequenceRow::read(row).unwrap().open;
        let columns =
            connection.query_row("SELECT due, busy FROM sequences WHERE sid = ?1", [open.sid], |row| {
                Ok([row.get::<_, Option<i64>>(0)?, row.get(1)?])
            });
        let Schedule { due, busy } = open.row.schedule();
        assert_eq!(
            columns.unwrap(),
            [due.map(nanos), busy.map(nanos)],
            "due and busy of sequence {}",
            open.name
        );
    }
}

mod tests {
    use lazaret_core::store::{
        Act, Actor, ErrorKind, GroupsRequest, HandOff, LetterStore, Limits, Placement, Triage,
    };
    use lazaret_core::{
        Failure, Letter, LetterId, LetterState, Message, Position, QueueName, Reason, SequenceId, Timestamp,
    };

    use super::check;
    use crate::encoded_letter::EncodedLetter;
    use crate::error::Fault;
    use crate::letters::{CLOSED_BEFORE, EXPIRING, PROLONGED, groups};
    use crate::{Options, SqliteStore};

    /// Opens a store in a new file, with one dead letter.
    async fn one_letter(folder: &tempfile::TempDir, options: Options) -> (SqliteStore, QueueName) {
        let store = SqliteStore::open(folder.path().join("lazaret.db"), options).unwrap();
        let queue = QueueName::of("orders", "orders");
        store.hand_off(&queue, &Limits::NONE, vec![dead(&queue, 0, 2)]).await.unwrap().remove(0).unwrap();
        (store, queue)
    }

    /// A dead letter in a sequence and a group of its own.
    fn dead(queue: &QueueName, number: u64, payload: usize) -> HandOff {
        let message = Message::new(format!("m{number}"), "orders", Position::new(0, number))
            .with_payload(vec![b'x'; payload]);
        let sequence = SequenceId::new(format!("s{number}"));
        let mut letter = Letter::new(queue.clone(), sequence, message.into(), Timestamp::UNIX_EPOCH);
        letter.state = LetterState::Dead;
        letter.cause = Some(Failure::new(
            Reason::TIMEOUT,
            format!("Error{}", char::from(b'A' + (number % 26) as u8)),
            "",
        ));
        HandOff { letter, placement: Placement::Open, grant: None }
    }

    #[tokio::test]
    async fn a_request_that_fails_half_way_does_not_change_the_groups() {
        let folder = tempfile::tempdir().unwrap();
        let (store, queue) = one_letter(&folder, Options::default()).await;
        let name = queue.clone();
        let failed = store.write("hand_off", move |step| {
            step.queue(&name, |queue| {
                let items = [dead(queue.name, 1, 2), dead(queue.name, 26, 2)]
                    .map(|item| EncodedLetter::new(item).unwrap());
                queue.hand_off_all(&items, &Limits::NONE)?;
                Err::<(), _>(Fault::Corrupt("on purpose".into()))
            })
        });
        assert_eq!(failed.await.unwrap_err().kind(), ErrorKind::Corrupt);
        let file = rusqlite::Connection::open(store.path()).unwrap();
        check(&file);
        store.hand_off(&queue, &Limits::NONE, vec![dead(&queue, 1, 2)]).await.unwrap().remove(0).unwrap();
        check(&file);
        assert_eq!(store.counts(&queue).await.unwrap().open(), 2);
    }

    #[tokio::test]
    async fn a_full_file_does_not_change_the_groups() {
        // I9
        let folder = tempfile::tempdir().unwrap();
        let (store, queue) =
            one_letter(&folder, Options { max_pages: Some(150), ..Options::default() }).await;
        let mut number = 1;
        while store.hand_off(&queue, &Limits::NONE, vec![dead(&queue, number, 10_000)]).await.is_ok() {
            number += 1;
            assert!(number < 1000, "the file is not limited");
        }
        check(&rusqlite::Connection::open(store.path()).unwrap());
        store
            .act(
                &queue,
                LetterId::of(&queue, &"m0".into()),
                Act::Resolve,
                &Actor::new("ada", "cli", "why not"),
            )
            .await
            .unwrap();
        check(&rusqlite::Connection::open(store.path()).unwrap());
    }

    /// The queries of operators and of the expiry use indexes, whatever the number of letters.
    #[tokio::test]
    async fn no_query_scans_all_letters_or_groups() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = one_letter(&folder, Options::default()).await;
        let file = rusqlite::Connection::open(store.path()).unwrap();
        for (sql, index) in [
            (groups::OF_ALL, "groups_open (open"),
            (groups::OF_QUEUE, "groups_of_queue (qid=? AND open"),
            (groups::OLDEST_OF_GROUP, "letters_group (gid=?)"),
            (groups::OLDEST_OF_QUEUE, "letters_oldest (qid=?)"),
            (groups::NEXT_EXPIRY, "letters_expiring (qid=?"),
            (groups::NEXT_EXPIRIES, "letters_expiring (qid=?"),
            (groups::EXPIRIES_OF_OLDEST, "letters_group (gid=?)"),
            (EXPIRING, "letters_expiring (qid=? AND expires_at"),
            (CLOSED_BEFORE, "letters_closed (qid=? AND closed_at"),
        ] {
            let plan = plan_of(&file, sql);
            assert_eq!(plan.len(), 1, "{sql}: {plan:?}");
            assert!(plan[0].contains(index), "{sql}: {plan:?}");
        }
    }

    /// The first claim of a process reads the leases of a queue, and not all its sequences.
    #[tokio::test]
    async fn the_leases_of_a_queue_are_found_by_an_index() {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = one_letter(&folder, Options::default()).await;
        let plan = plan_of(&rusqlite::Connection::open(store.path()).unwrap(), PROLONGED);
        for index in ["sequences_leased (qid=? AND lease_until>?)", "sequences_touched (qid=? AND touched>?)"]
        {
            assert!(plan.iter().any(|step| step.contains(index)), "{index}: {plan:?}");
        }
        assert!(plan.iter().all(|step| !step.contains("SCAN") && !step.contains("(qid=?)")), "{plan:?}");
    }

    /// The steps of a query, as SQLite plans it.
    fn plan_of(file: &rusqlite::Connection, sql: &str) -> Vec<String> {
        let mut explain = file.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let parameters = vec![rusqlite::types::Null; explain.parameter_count()];
        let rows = explain.query_map(rusqlite::params_from_iter(parameters), |row| row.get(3)).unwrap();
        rows.map(Result::unwrap).collect()
    }

    /// Groups were added in version 2: they are computed when a file of version 1 is opened.
    #[tokio::test]
    async fn letters_of_an_old_file_are_grouped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("old.db");
        let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1.db");
        std::fs::write(&path, std::fs::read(fixture).unwrap()).unwrap();
        let store = SqliteStore::open(&path, Options::default()).unwrap();
        let groups =
            store.groups(&GroupsRequest { limit: 10, ..GroupsRequest::default() }).await.unwrap().groups;
        assert_eq!(groups.len(), 1);
        let group = &groups[0];
        assert_eq!((group.error_type.as_str(), group.message.as_str()), ("HttpError", "boom"));
        assert_eq!((group.counts.of(LetterState::Retrying), group.blocked_behind), (1, 1));
        check(&rusqlite::Connection::open(&path).unwrap());
    }
}
