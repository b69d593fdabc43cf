//! Pauses, with author, reason and start.

use lazaret_core::ConsumerName;
use lazaret_core::store::rules;
use lazaret_core::store::{Actor, Pause, PauseScope};
use rusqlite::{Connection, params};

use crate::audit;
use crate::error::{Fault, Work};
use crate::letters::set_schedule;
use crate::rows::{scope_text, time};
use crate::step::Step;

pub(crate) fn set_pause(
    step: &mut Step<'_>,
    consumer: &ConsumerName,
    scope: &PauseScope,
    paused: bool,
    by: &Actor,
) -> Work<bool> {
    let key = [consumer.as_str(), &scope_text(scope)?];
    let mut delete =
        step.connection.prepare_cached("DELETE FROM pauses WHERE consumer = ?1 AND scope = ?2")?;
    let before = delete.execute(key)? > 0;
    if paused {
        let mut insert = step.connection.prepare_cached(
            "INSERT INTO pauses (consumer, scope, who, via, why, since) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?;
        insert.execute(params![key[0], key[1], by.who, by.via, by.why, step.now])?;
    }
    mark_sequence(step, consumer, scope, paused)?;
    if let Some(line) = rules::pause_audit(consumer, scope, before, paused, by) {
        audit::write(step.connection, step.now, &line)?;
    }
    Ok(before)
}

/// Marks a sequence as paused or resumed in every queue of the consumer.
fn mark_sequence(step: &mut Step<'_>, consumer: &ConsumerName, scope: &PauseScope, paused: bool) -> Work<()> {
    let PauseScope::Sequence(sequence) = scope else { return Ok(()) };
    step.cache.pauses_changed();
    let mut update = step.connection.prepare_cached(concat!(
        "UPDATE sequences SET paused = ?3, ",
        set_schedule!("?3", "reserved"),
        "WHERE qid IN (SELECT qid FROM queues WHERE consumer = ?1) AND name = ?2",
    ))?;
    update.execute(params![consumer.as_str(), sequence.as_str(), paused])?;
    Ok(())
}

/// The pauses of a consumer.
pub(crate) fn pauses(connection: &Connection, consumer: &ConsumerName) -> Work<Vec<Pause>> {
    let mut select = connection.prepare_cached(
        "SELECT scope, who, via, why, since FROM pauses WHERE consumer = ?1 ORDER BY scope",
    )?;
    let mut rows = select.query([consumer.as_str()])?;
    let mut pauses = Vec::new();
    while let Some(row) = rows.next()? {
        let scope = serde_json::from_str(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?)
            .map_err(|error| Fault::Corrupt(format!("failed to decode a pause scope: {error}")))?;
        let by = Actor { who: row.get(1)?, via: row.get(2)?, why: row.get(3)? };
        pauses.push(Pause { scope, by, since: time(row.get(4)?) });
    }
    pauses.sort_by(|one, other| one.scope.cmp(&other.scope));
    Ok(pauses)
}
