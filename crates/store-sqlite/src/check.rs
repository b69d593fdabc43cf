//! Counts everything again, letter by letter, and compares: for tests.

use std::collections::BTreeMap;

use lazaret_core::{LetterState, Timestamp};
use rusqlite::Connection;

use crate::facts::groups::{read_group, select_group};
use crate::facts::read_counts;
use crate::rows::{Body, state};

/// What the letters of a group add up to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums {
    by_state: [i64; 9],
    sequences: i64,
    behind: i64,
}

struct Row {
    qid: i64,
    sid: Option<i64>,
    index: i64,
    state: LetterState,
    gid: Option<i64>,
    purged: bool,
}

/// Panics when a counter or a mark in the file is not what the letters say.
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
        let (gid, facts) = read_group(row).unwrap();
        let stored = Sums { by_state: facts.by_state, sequences: facts.sequences, behind: facts.behind };
        assert_eq!(Some(stored), groups.remove(&gid), "group {gid}, {}", facts.fingerprint);
        assert!(facts.trend.at(Timestamp::MIN).iter().sum::<u64>() > 0, "something came into group {gid}");
    }
    assert!(groups.is_empty(), "letters of groups that are not there: {groups:?}");
}

/// All letters, each of which is marked as it should be.
fn letters(connection: &Connection) -> Vec<Row> {
    let sql = "SELECT qid, sid, idx, state, gid, closed_at, body, lid,
               (SELECT fingerprint FROM groups WHERE groups.gid = letters.gid AND groups.qid = letters.qid),
               (SELECT count(*) FROM payloads WHERE payloads.lid = letters.lid) FROM letters";
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
        let cause = Body::decode(row.get_ref(6).unwrap().as_blob().unwrap()).unwrap().cause;
        let cause = cause.map(|cause| cause.fingerprint.to_string());
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

/// Checks what each sequence says of its letters, and adds it to the group of its head.
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
            sums.behind += letters.len() as i64 - 1;
        }
    }
    assert!(sequences.is_empty(), "letters of sequences that are not there: {sequences:?}");
}
