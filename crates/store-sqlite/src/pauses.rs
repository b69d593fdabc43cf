//! What is paused, with who, why and since when.

use lazaret_core::ConsumerName;
use lazaret_core::store::rules::AuditLine;
use lazaret_core::store::{Actor, Pause, PauseScope};
use rusqlite::{Connection, params};

use crate::audit;
use crate::error::{Fault, Work};
use crate::rows::{scope_text, time};
use crate::step::Step;

pub(crate) fn pause(
    step: &mut Step<'_>,
    consumer: &ConsumerName,
    scope: &PauseScope,
    by: &Actor,
) -> Work<()> {
    let text = scope_text(scope)?;
    let mut select =
        step.connection.prepare_cached("SELECT 1 FROM pauses WHERE consumer = ?1 AND scope = ?2")?;
    let before = select.exists([consumer.as_str(), &text])?;
    let mut upsert = step.connection.prepare_cached(
        "INSERT INTO pauses (consumer, scope, who, via, why, since) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (consumer, scope)
         DO UPDATE SET who = excluded.who, via = excluded.via, why = excluded.why, since = excluded.since",
    )?;
    upsert.execute(params![consumer.as_str(), text, by.who, by.via, by.why, step.now])?;
    mark_sequence(step, consumer, scope, true)?;
    let subject = format!("{consumer}: {scope}");
    let line = AuditLine::new(by, "pause", subject, before.then_some("paused"), Some("paused"));
    audit::write(step.connection, step.now, &line)
}

pub(crate) fn resume(
    step: &mut Step<'_>,
    consumer: &ConsumerName,
    scope: &PauseScope,
    by: &Actor,
) -> Work<bool> {
    let mut delete =
        step.connection.prepare_cached("DELETE FROM pauses WHERE consumer = ?1 AND scope = ?2")?;
    if delete.execute([consumer.as_str(), &scope_text(scope)?])? == 0 {
        return Ok(false);
    }
    mark_sequence(step, consumer, scope, false)?;
    let subject = format!("{consumer}: {scope}");
    audit::write(step.connection, step.now, &AuditLine::new(by, "resume", subject, Some("paused"), None))?;
    Ok(true)
}

/// Tells every queue of the consumer that a sequence is paused, or no longer.
fn mark_sequence(step: &mut Step<'_>, consumer: &ConsumerName, scope: &PauseScope, paused: bool) -> Work<()> {
    let PauseScope::Sequence(sequence) = scope else { return Ok(()) };
    step.cache.pauses_changed();
    let mut update = step.connection.prepare_cached(
        "UPDATE sequences SET paused = ?3,
         due = CASE WHEN NOT ?3 AND reserved IS NULL AND lease_fence IS NULL THEN head_due END,
         busy = CASE WHEN NOT ?3 AND reserved IS NULL AND lease_fence IS NOT NULL THEN max(head_due, lease_until) END
         WHERE qid IN (SELECT qid FROM queues WHERE consumer = ?1) AND name = ?2",
    )?;
    update.execute(params![consumer.as_str(), sequence.as_str(), paused])?;
    Ok(())
}

/// What is paused of a consumer.
pub(crate) fn pauses(connection: &Connection, consumer: &ConsumerName) -> Work<Vec<Pause>> {
    let mut select = connection.prepare_cached(
        "SELECT scope, who, via, why, since FROM pauses WHERE consumer = ?1 ORDER BY scope",
    )?;
    let mut rows = select.query([consumer.as_str()])?;
    let mut pauses = Vec::new();
    while let Some(row) = rows.next()? {
        let scope = serde_json::from_str(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?)
            .map_err(|error| Fault::Corrupt(format!("a pause scope: {error}")))?;
        let by = Actor { who: row.get(1)?, via: row.get(2)?, why: row.get(3)? };
        pauses.push(Pause { scope, by, since: time(row.get(4)?) });
    }
    pauses.sort_by(|one, other| one.scope.cmp(&other.scope));
    Ok(pauses)
}
