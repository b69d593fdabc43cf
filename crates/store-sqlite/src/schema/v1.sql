CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value
);

CREATE TABLE queues (
    qid       INTEGER PRIMARY KEY,
    name      TEXT    NOT NULL UNIQUE,
    consumer  TEXT    NOT NULL,
    revision  INTEGER NOT NULL DEFAULT 0,
    fence     INTEGER NOT NULL DEFAULT 0,
    idx       INTEGER NOT NULL,
    sequences INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX queues_consumer ON queues (consumer);

CREATE TABLE counts (
    qid   INTEGER NOT NULL,
    state INTEGER NOT NULL,
    n     INTEGER NOT NULL,
    PRIMARY KEY (qid, state)
) WITHOUT ROWID;

CREATE TABLE sequences (
    sid          INTEGER PRIMARY KEY,
    qid          INTEGER NOT NULL,
    name         TEXT    NOT NULL,
    count        INTEGER NOT NULL,
    head_idx     INTEGER NOT NULL,
    head_due     INTEGER,
    touched      INTEGER NOT NULL,
    revision     INTEGER NOT NULL,
    paused       INTEGER NOT NULL DEFAULT 0,
    lease_owner  TEXT,
    lease_fence  INTEGER,
    lease_until  INTEGER,
    lease_replay INTEGER,
    due          INTEGER,
    busy         INTEGER
);
CREATE UNIQUE INDEX sequences_name ON sequences (qid, name);
CREATE INDEX sequences_due ON sequences (qid, due) WHERE due IS NOT NULL;
CREATE INDEX sequences_busy ON sequences (qid, busy) WHERE busy IS NOT NULL;
CREATE INDEX sequences_touched ON sequences (qid, touched);
CREATE INDEX sequences_revision ON sequences (qid, revision);

CREATE TABLE letters (
    lid             INTEGER PRIMARY KEY,
    id              BLOB    NOT NULL,
    qid             INTEGER NOT NULL,
    sid             INTEGER,
    idx             INTEGER NOT NULL,
    state           INTEGER NOT NULL,
    attempts        INTEGER NOT NULL,
    crash_attempts  INTEGER NOT NULL,
    replay_attempts INTEGER NOT NULL,
    poison          INTEGER NOT NULL,
    enqueued_at     INTEGER NOT NULL,
    touched_at      INTEGER NOT NULL,
    due_at          INTEGER,
    expires_at      INTEGER,
    first_failed_at INTEGER,
    last_failed_at  INTEGER,
    partition       INTEGER NOT NULL,
    position        INTEGER NOT NULL,
    stream          TEXT    NOT NULL,
    sequence        TEXT    NOT NULL,
    message         TEXT    NOT NULL,
    event_type      TEXT,
    body            BLOB    NOT NULL
);
CREATE UNIQUE INDEX letters_id ON letters (id);
CREATE UNIQUE INDEX letters_place ON letters (sid, idx) WHERE sid IS NOT NULL;

CREATE TABLE payloads (
    lid     INTEGER PRIMARY KEY,
    key     BLOB,
    headers BLOB,
    payload BLOB
);

CREATE TABLE grants (
    qid       INTEGER NOT NULL,
    stream    TEXT    NOT NULL,
    partition INTEGER NOT NULL,
    fence     INTEGER NOT NULL,
    horizon   INTEGER,
    turn      INTEGER NOT NULL,
    PRIMARY KEY (qid, stream, partition)
) WITHOUT ROWID;

CREATE TABLE notes (
    nid       INTEGER PRIMARY KEY,
    qid       INTEGER NOT NULL,
    stream    TEXT    NOT NULL,
    partition INTEGER NOT NULL,
    position  INTEGER NOT NULL,
    message   TEXT    NOT NULL,
    attempts  INTEGER NOT NULL,
    body      BLOB    NOT NULL
);
CREATE UNIQUE INDEX notes_place ON notes (qid, stream, partition, position, message);

CREATE TABLE pauses (
    consumer TEXT    NOT NULL,
    scope    TEXT    NOT NULL,
    who      TEXT    NOT NULL,
    via      TEXT    NOT NULL,
    why      TEXT    NOT NULL,
    since    INTEGER NOT NULL,
    PRIMARY KEY (consumer, scope)
) WITHOUT ROWID;

CREATE TABLE audit (
    number    INTEGER PRIMARY KEY AUTOINCREMENT,
    at        INTEGER NOT NULL,
    who       TEXT    NOT NULL,
    via       TEXT    NOT NULL,
    why       TEXT    NOT NULL,
    action    TEXT    NOT NULL,
    subject   TEXT    NOT NULL,
    before    TEXT,
    after     TEXT,
    prev_hash BLOB    NOT NULL,
    hash      BLOB    NOT NULL
);

CREATE TABLE checkpoints (
    name            TEXT PRIMARY KEY,
    processed_token BLOB,
    processed_at    INTEGER,
    seen_token      BLOB,
    seen_at         INTEGER,
    heartbeat       INTEGER,
    instance        TEXT,
    metadata        TEXT NOT NULL
);

CREATE TABLE locks (
    name        TEXT PRIMARY KEY,
    owner       TEXT    NOT NULL,
    fence       INTEGER NOT NULL,
    acquired_at INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL
);

CREATE TABLE inbox (
    iid     INTEGER PRIMARY KEY,
    qid     INTEGER NOT NULL,
    message TEXT    NOT NULL,
    owner   TEXT,
    until   INTEGER NOT NULL
);
CREATE UNIQUE INDEX inbox_message ON inbox (qid, message);
CREATE INDEX inbox_until ON inbox (until);
