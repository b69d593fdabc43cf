-- Numbers of letters, which also give their indexes, and of sequences. They grow; gaps mean nothing.
CREATE SEQUENCE numbers;
-- Numbers of leases.
CREATE SEQUENCE fences;

CREATE TABLE queues (
    qid      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name     text   COLLATE "C" NOT NULL UNIQUE,
    consumer text   COLLATE "C" NOT NULL,
    -- Grows with each sequence that is opened. Its row is locked for that until the commit: no revision appears after a later one.
    revision bigint NOT NULL DEFAULT 0
);
CREATE INDEX queues_consumer ON queues (consumer);

-- The counters of a queue are the sums of its stripes: calls that count at the same time rarely meet in one row.
CREATE TABLE counts (
    qid         bigint   NOT NULL,
    stripe      smallint NOT NULL,
    sequences   bigint   NOT NULL,
    retrying    bigint   NOT NULL,
    dead        bigint   NOT NULL,
    parked      bigint   NOT NULL,
    quarantined bigint   NOT NULL,
    waiting     bigint   NOT NULL,
    resolved    bigint   NOT NULL,
    evicted     bigint   NOT NULL,
    skipped     bigint   NOT NULL,
    expired     bigint   NOT NULL,
    PRIMARY KEY (qid, stripe)
) WITH (fillfactor = 50);

-- One row per open sequence: the lock for all that happens to it.
CREATE TABLE sequences (
    sid             bigint  PRIMARY KEY,
    qid             bigint  NOT NULL,
    -- Of the name, which may be longer than an entry of an index.
    hash            uuid    NOT NULL,
    name            text    COLLATE "C" NOT NULL,
    revision        bigint  NOT NULL,
    count           bigint  NOT NULL,
    head_idx        bigint  NOT NULL,
    head_due        bigint,
    head_group      text    COLLATE "C",
    touched         bigint  NOT NULL,
    paused          boolean NOT NULL,
    lease_owner     text,
    lease_fence     bigint,
    lease_until     bigint,
    lease_kind      smallint,
    lease_waits     boolean,
    lease_operation bigint,
    reserved        bigint,
    pace_next       bigint,
    pace_interval   bigint,
    pace_left       bigint,
    -- When it can be claimed, leased or not; NULL while it does not run by itself.
    free_at         bigint
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX sequences_name ON sequences (qid, hash);
CREATE INDEX sequences_free ON sequences (qid, free_at) WHERE free_at IS NOT NULL;
CREATE INDEX sequences_touched ON sequences (qid, touched, sid);
CREATE INDEX sequences_revision ON sequences (qid, revision);
CREATE INDEX sequences_operation ON sequences (lease_operation) WHERE lease_operation IS NOT NULL;
CREATE INDEX sequences_reserved ON sequences (reserved) WHERE reserved IS NOT NULL;

-- One row per letter. An open one has the `sid` of its sequence, a closed one the time when it was closed, a purged one neither.
CREATE TABLE letters (
    lid              bigint   PRIMARY KEY,
    id               uuid     NOT NULL,
    qid              bigint   NOT NULL,
    sid              bigint,
    idx              bigint   NOT NULL,
    state            smallint NOT NULL,
    attempts         bigint   NOT NULL,
    crash_attempts   bigint   NOT NULL,
    replay_attempts  bigint   NOT NULL,
    poison           boolean  NOT NULL,
    enqueued_at      bigint   NOT NULL,
    touched_at       bigint   NOT NULL,
    due_at           bigint,
    expires_at       bigint,
    first_failed_at  bigint,
    last_failed_at   bigint,
    closed_at        bigint,
    partition        bigint   NOT NULL,
    position         bigint   NOT NULL,
    stream           text     COLLATE "C" NOT NULL,
    sequence         text     COLLATE "C" NOT NULL,
    message          text     COLLATE "C" NOT NULL,
    event_type       text     COLLATE "C",
    -- Those of the cause, for queries.
    reason           text     COLLATE "C",
    cause_group      text     COLLATE "C",
    payload_left_out boolean  NOT NULL,
    edits            bigint   NOT NULL,
    body             json     NOT NULL
) WITH (fillfactor = 85);
CREATE UNIQUE INDEX letters_id ON letters (id);
CREATE UNIQUE INDEX letters_place ON letters (sid, idx) WHERE sid IS NOT NULL;
CREATE INDEX letters_open ON letters (qid, lid) WHERE sid IS NOT NULL;
CREATE INDEX letters_group ON letters (qid, cause_group, lid) WHERE sid IS NOT NULL AND cause_group IS NOT NULL;
CREATE INDEX letters_reason ON letters (reason, lid) WHERE sid IS NOT NULL AND reason IS NOT NULL;
CREATE INDEX letters_type ON letters (md5(event_type), lid) WHERE sid IS NOT NULL AND event_type IS NOT NULL;
CREATE INDEX letters_expiring ON letters (qid, expires_at, lid) WHERE sid IS NOT NULL AND expires_at IS NOT NULL;
CREATE INDEX letters_closed ON letters (qid, closed_at, lid) WHERE closed_at IS NOT NULL;

-- The bytes of their messages. Only edits change them, so a retry does not write them again.
CREATE TABLE payloads (
    lid     bigint PRIMARY KEY,
    key     bytea,
    headers bytea,
    payload bytea
);

-- The payloads that edits have replaced; `kept` is the size of the originals up to this one.
CREATE TABLE edits (
    lid      bigint NOT NULL,
    number   bigint NOT NULL,
    who      text   NOT NULL,
    at       bigint NOT NULL,
    why      text   NOT NULL,
    kept     bigint NOT NULL,
    original bytea,
    PRIMARY KEY (lid, number)
);

CREATE TABLE groups (
    qid         bigint NOT NULL,
    fingerprint text   COLLATE "C" NOT NULL,
    reason      text   NOT NULL,
    error_type  text   NOT NULL,
    message     text   NOT NULL,
    sequences   bigint NOT NULL,
    behind      bigint NOT NULL,
    first_seen  bigint NOT NULL,
    last_seen   bigint NOT NULL,
    trend       json   NOT NULL,
    -- In the order of the states.
    by_state    bigint[] NOT NULL,
    PRIMARY KEY (qid, fingerprint)
) WITH (fillfactor = 50);

CREATE TABLE grants (
    qid       bigint NOT NULL,
    stream    text   COLLATE "C" NOT NULL,
    partition bigint NOT NULL,
    fence     bigint NOT NULL,
    turn      bigint NOT NULL,
    horizon   bigint,
    PRIMARY KEY (qid, stream, partition)
) WITH (fillfactor = 50);

CREATE TABLE notes (
    qid       bigint NOT NULL,
    -- The id that the letter of the message would have.
    id        uuid   NOT NULL,
    stream    text   COLLATE "C" NOT NULL,
    partition bigint NOT NULL,
    position  bigint NOT NULL,
    message   text   COLLATE "C" NOT NULL,
    attempts  bigint NOT NULL,
    body      json   NOT NULL,
    PRIMARY KEY (qid, id, stream, partition, position)
);
CREATE INDEX notes_place ON notes (qid, stream, partition, position);

CREATE TABLE pauses (
    consumer text   COLLATE "C" NOT NULL,
    hash     uuid   NOT NULL,
    scope    json   NOT NULL,
    who      text   NOT NULL,
    via      text   NOT NULL,
    why      text   NOT NULL,
    since    bigint NOT NULL,
    PRIMARY KEY (consumer, hash)
);

-- A hash chain; its numbers have no gaps.
CREATE TABLE audit (
    number   bigint PRIMARY KEY,
    at       bigint NOT NULL,
    who      text   NOT NULL,
    via      text   NOT NULL,
    why      text   NOT NULL,
    action   text   NOT NULL,
    subject  text   NOT NULL,
    before   text,
    after    text,
    previous bytea  NOT NULL,
    hash     bytea  NOT NULL
);

CREATE TABLE plans (
    plan       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    action     text   NOT NULL,
    query      text,
    letters    bigint NOT NULL,
    sequences  bigint NOT NULL,
    followers  bigint NOT NULL,
    excluded   json   NOT NULL,
    hash       text   NOT NULL,
    who        text   NOT NULL,
    via        text   NOT NULL,
    why        text   NOT NULL,
    frozen_at  bigint NOT NULL,
    expires_at bigint NOT NULL,
    carried_out boolean NOT NULL DEFAULT false
);
CREATE INDEX plans_expired ON plans (expires_at) WHERE NOT carried_out;

-- The letters of one sequence stand together; `last` is the ordinal of the last of them.
CREATE TABLE items (
    plan     bigint   NOT NULL,
    ordinal  bigint   NOT NULL,
    last     bigint   NOT NULL,
    qid      bigint   NOT NULL,
    sequence text     COLLATE "C" NOT NULL,
    letter   uuid     NOT NULL,
    state    smallint NOT NULL,
    digest   bytea    NOT NULL,
    outcome  smallint,
    PRIMARY KEY (plan, ordinal)
) WITH (fillfactor = 85);
CREATE INDEX items_pending ON items (plan, ordinal) WHERE outcome IS NULL;
CREATE INDEX items_of_queue ON items (plan, qid, ordinal) WHERE outcome IS NULL;
CREATE INDEX items_letter ON items (letter) WHERE outcome IS NULL;

CREATE TABLE operations (
    operation      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    plan           bigint NOT NULL UNIQUE,
    action         text   NOT NULL,
    rollout        json   NOT NULL,
    state          text   NOT NULL,
    note           text,
    stage          bigint NOT NULL,
    letters        bigint NOT NULL,
    ok             bigint NOT NULL,
    failed_again   bigint NOT NULL,
    skipped        bigint NOT NULL,
    who            text   NOT NULL,
    via            text   NOT NULL,
    why            text   NOT NULL,
    approved_by    json,
    created_at     bigint NOT NULL,
    updated_at     bigint NOT NULL,
    ended_at       bigint,
    next_at        bigint,
    counted_ok     bigint NOT NULL,
    counted_failed bigint NOT NULL,
    released       bigint NOT NULL,
    -- When a letter last had its turn, from 0; NULL when every letter has its outcome.
    served_at      bigint
) WITH (fillfactor = 50);
CREATE INDEX operations_live ON operations (served_at, operation) WHERE served_at IS NOT NULL;

-- Checkpoints, locks and the duplicate filter.
CREATE TABLE key_values (
    hash       uuid   PRIMARY KEY,
    space      text   COLLATE "C" NOT NULL,
    name       text   COLLATE "C" NOT NULL,
    value      bytea  NOT NULL,
    version    bigint NOT NULL,
    expires_at bigint
) WITH (fillfactor = 70);
CREATE INDEX key_values_expiring ON key_values (expires_at) WHERE expires_at IS NOT NULL;
