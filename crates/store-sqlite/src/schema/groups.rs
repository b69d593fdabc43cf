//! Migration to version 2: computes the groups of existing letters.

use rusqlite::Connection;

use crate::error::Work;
use crate::rows::{Body, limit as rows_of, state, time, unsigned};
use crate::write_cache::groups::Groups;

/// Computes the groups of the letters of a file without groups.
pub(super) fn fill(connection: &Connection) -> Work<()> {
    const PAGE: usize = 1000;
    let mut groups = Groups::default();
    let mut select = connection.prepare(
        "SELECT lid, qid, state, enqueued_at, last_failed_at, body FROM letters WHERE lid > ?1 ORDER BY lid LIMIT ?2",
    )?;
    let mut update = connection.prepare("UPDATE letters SET gid = ?2 WHERE lid = ?1")?;
    let mut last = i64::MIN;
    loop {
        let mut rows = select.query([last, rows_of(PAGE)])?;
        let mut any = false;
        while let Some(row) = rows.next()? {
            (any, last) = (true, row.get(0)?);
            let body = Body::decode(row.get_ref(5)?.as_blob().map_err(rusqlite::Error::from)?)?;
            let Some(cause) = body.cause else { continue };
            let (enqueued_at, failed_at): (i64, Option<i64>) = (row.get(3)?, row.get(4)?);
            let gid = groups.named(connection, row.get(1)?, cause.fingerprint, enqueued_at)?;
            let group = &mut groups.get(connection, gid)?.row;
            group.first_seen = group.first_seen.min(time(enqueued_at));
            group.enter(&cause, time(failed_at.unwrap_or(enqueued_at)), time(enqueued_at));
            group.count(state(row.get(2)?)?, 1);
            update.execute([last, gid])?;
        }
        groups.keep();
        groups.write(connection)?;
        if !any {
            break;
        }
    }
    fill_heads(connection, &mut groups)
}

fn fill_heads(connection: &Connection, groups: &mut Groups) -> Work<()> {
    connection.execute_batch(
        "UPDATE sequences SET head_gid =
         (SELECT gid FROM letters WHERE letters.sid = sequences.sid AND letters.idx = sequences.head_idx)",
    )?;
    let mut select = connection.prepare(
        "SELECT head_gid, count(*), sum(count - 1) FROM sequences WHERE head_gid IS NOT NULL GROUP BY head_gid",
    )?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let group = &mut groups.get(connection, row.get(0)?)?.row;
        (group.sequences, group.behind) = (unsigned(row.get(1)?)?, unsigned(row.get(2)?)?);
    }
    groups.keep();
    groups.write(connection)
}
