//! The statements that write the rows of a call, an array for each column. Those of [letters](crate::letter_arrays) are with their columns.
//!
//! Arrays of rows that a hand-off writes are unnested in the select list: rows go from there to their table. `FROM unnest(…)` would copy
//! each array first, and then put the copies together.

pub(crate) const INSERT_PAYLOADS: &str = "INSERT INTO payloads (lid, key, headers, payload)
    SELECT unnest($1::bigint[]), unnest($2::bytea[]), unnest($3::bytea[]), unnest($4::bytea[])";
pub(crate) const UPDATE_PAYLOADS: &str = "UPDATE payloads p SET payload = u.payload
    FROM unnest($1::bigint[], $2::bytea[]) AS u (lid, payload) WHERE p.lid = u.lid";
pub(crate) const INSERT_EDITS: &str = "INSERT INTO edits (lid, number, who, at, why, kept, original)
    SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::bigint[], $7::bytea[])";
/// All of a closed letter except id and state, so that a redelivered message is recognized (I8).
pub(crate) const PURGE_LETTERS: &str = "UPDATE letters SET closed_at = NULL, attempts = 0, crash_attempts = 0, replay_attempts = 0,
    poison = false, touched_at = $2, due_at = NULL, expires_at = NULL, first_failed_at = NULL, last_failed_at = NULL,
    partition = 0, position = 0, stream = '', sequence = '', message = '', event_type = NULL, reason = NULL,
    cause_group = NULL, edits = 0, body = $3::text::json WHERE lid = ANY($1)";
pub(crate) const ERASE_PAYLOADS: &str =
    "UPDATE payloads SET headers = NULL, payload = NULL WHERE lid = ANY($1)";
/// What tells the payload of an erased letter, in all plans that have it: 32 zero bytes are the digest of no payload.
pub(crate) const ERASE_DIGESTS: &str =
    "UPDATE items SET digest = decode(repeat('00', 32), 'hex') WHERE letter = ANY($1)";
pub(crate) const ERASE_PLAN_HASHES: &str = "UPDATE plans SET hash = 'erased:' || plan
    WHERE plan IN (SELECT plan FROM items WHERE letter = ANY($1)) AND hash <> 'erased:' || plan";
pub(crate) const PURGE_PAYLOADS: &str = "DELETE FROM payloads WHERE lid = ANY($1)";
pub(crate) const PURGE_EDITS: &str = "DELETE FROM edits WHERE lid = ANY($1)";
pub(crate) const INSERT_GRANTS: &str = "INSERT INTO grants (qid, stream, partition, fence, turn, horizon)
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])";
pub(crate) const UPDATE_GRANTS: &str =
    "UPDATE grants g SET fence = u.fence, turn = u.turn, horizon = u.horizon
    FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
    AS u (qid, stream, partition, fence, turn, horizon)
    WHERE g.qid = u.qid AND g.stream = u.stream AND g.partition = u.partition";
pub(crate) const RAISE_REVISIONS: &str = "UPDATE queues q SET revision = q.revision + u.opened
    FROM unnest($1::bigint[], $2::bigint[]) AS u (qid, opened) WHERE q.qid = u.qid";
pub(crate) const DELETE_SEQUENCES: &str = "DELETE FROM sequences WHERE sid = ANY($1)";
/// Reads each queue once, and not for each of its sequences: `OFFSET 0` keeps the order of the loops.
pub(crate) const INSERT_SEQUENCES: &str = "INSERT INTO sequences (sid, qid, hash, name, revision, count, head_idx, head_due,
    head_group, touched, paused, lease_owner, lease_fence, lease_until, lease_kind, lease_waits, lease_operation,
    reserved, pace_next, pace_interval, pace_left, free_at)
    SELECT u.sid, u.qid, u.hash, u.name, q.revision - u.back, u.count, u.head_idx, u.head_due, u.head_group, u.touched,
    u.paused, u.lease_owner, u.lease_fence, u.lease_until, u.lease_kind, u.lease_waits, u.lease_operation, u.reserved,
    u.pace_next, u.pace_interval, u.pace_left, u.free_at
    FROM queues q CROSS JOIN LATERAL (SELECT * FROM (
    SELECT unnest($1::bigint[]) AS sid, unnest($2::bigint[]) AS qid, unnest($3::uuid[]) AS hash,
    unnest($4::text[]) AS name, unnest($5::bigint[]) AS count, unnest($6::bigint[]) AS head_idx,
    unnest($7::bigint[]) AS head_due, unnest($8::text[]) AS head_group, unnest($9::bigint[]) AS touched,
    unnest($10::boolean[]) AS paused, unnest($11::text[]) AS lease_owner, unnest($12::bigint[]) AS lease_fence,
    unnest($13::bigint[]) AS lease_until, unnest($14::smallint[]) AS lease_kind,
    unnest($15::boolean[]) AS lease_waits, unnest($16::bigint[]) AS lease_operation,
    unnest($17::bigint[]) AS reserved, unnest($18::bigint[]) AS pace_next,
    unnest($19::bigint[]) AS pace_interval, unnest($20::bigint[]) AS pace_left,
    unnest($21::bigint[]) AS free_at, unnest($22::bigint[]) AS back) n WHERE n.qid = q.qid OFFSET 0) u
    WHERE q.qid = ANY($2)";
pub(crate) const UPDATE_SEQUENCES: &str = "UPDATE sequences s SET revision = coalesce(q.revision - u.back, s.revision),
    count = u.count, head_idx = u.head_idx, head_due = u.head_due, head_group = u.head_group, touched = u.touched,
    paused = u.paused, lease_owner = u.lease_owner, lease_fence = u.lease_fence, lease_until = u.lease_until,
    lease_kind = u.lease_kind, lease_waits = u.lease_waits, lease_operation = u.lease_operation, reserved = u.reserved,
    pace_next = u.pace_next, pace_interval = u.pace_interval, pace_left = u.pace_left, free_at = u.free_at
    FROM unnest($1::bigint[], $2::bigint[], $3::uuid[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[],
    $8::text[], $9::bigint[], $10::boolean[], $11::text[], $12::bigint[], $13::bigint[], $14::smallint[],
    $15::boolean[], $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[], $20::bigint[], $21::bigint[],
    $22::bigint[]) AS u (sid, qid, hash, name, count, head_idx, head_due, head_group, touched, paused, lease_owner,
    lease_fence, lease_until, lease_kind, lease_waits, lease_operation, reserved, pace_next, pace_interval, pace_left,
    free_at, back) LEFT JOIN queues q ON q.qid = u.qid AND u.back IS NOT NULL WHERE s.sid = u.sid";
pub(crate) const ADD_COUNTS: &str = "INSERT INTO counts AS c (qid, stripe, sequences, retrying, dead, parked, quarantined, waiting,
    resolved, evicted, skipped, expired)
    SELECT qid, $2, sequences, retrying, dead, parked, quarantined, waiting, resolved, evicted, skipped, expired
    FROM unnest($1::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
    $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[])
    AS u (qid, sequences, retrying, dead, parked, quarantined, waiting, resolved, evicted, skipped, expired)
    ORDER BY qid
    ON CONFLICT (qid, stripe) DO UPDATE SET sequences = c.sequences + excluded.sequences,
    retrying = c.retrying + excluded.retrying, dead = c.dead + excluded.dead, parked = c.parked + excluded.parked,
    quarantined = c.quarantined + excluded.quarantined, waiting = c.waiting + excluded.waiting,
    resolved = c.resolved + excluded.resolved, evicted = c.evicted + excluded.evicted,
    skipped = c.skipped + excluded.skipped, expired = c.expired + excluded.expired";
