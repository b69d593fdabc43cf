CREATE TABLE plans (
    plan       INTEGER PRIMARY KEY AUTOINCREMENT,
    action     TEXT    NOT NULL,
    query      TEXT,
    letters    INTEGER NOT NULL,
    sequences  INTEGER NOT NULL,
    excluded   TEXT    NOT NULL,
    hash       TEXT    NOT NULL,
    who        TEXT    NOT NULL,
    via        TEXT    NOT NULL,
    why        TEXT    NOT NULL,
    frozen_at  INTEGER NOT NULL,
    expires_at INTEGER NOT NULL
);
CREATE INDEX plans_expired ON plans (expires_at);

-- The letters of one sequence stand together; `last` is the ordinal of the last of them.
CREATE TABLE items (
    plan     INTEGER NOT NULL,
    ordinal  INTEGER NOT NULL,
    last     INTEGER NOT NULL,
    qid      INTEGER NOT NULL,
    sequence TEXT    NOT NULL,
    letter   BLOB    NOT NULL,
    state    INTEGER NOT NULL,
    outcome  INTEGER,
    PRIMARY KEY (plan, ordinal)
) WITHOUT ROWID;
CREATE INDEX items_pending ON items (plan, ordinal) WHERE outcome IS NULL;
CREATE INDEX items_of_queue ON items (plan, qid, ordinal) WHERE outcome IS NULL;
CREATE INDEX items_letter ON items (letter) WHERE outcome IS NULL;

CREATE TABLE operations (
    operation      INTEGER PRIMARY KEY,
    plan           INTEGER NOT NULL UNIQUE,
    action         TEXT    NOT NULL,
    conduct        TEXT    NOT NULL,
    state          TEXT    NOT NULL,
    note           TEXT,
    stage          INTEGER NOT NULL,
    letters        INTEGER NOT NULL,
    ok             INTEGER NOT NULL,
    failed_again   INTEGER NOT NULL,
    skipped        INTEGER NOT NULL,
    who            TEXT    NOT NULL,
    via            TEXT    NOT NULL,
    why            TEXT    NOT NULL,
    approved_by    TEXT,
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    ended_at       INTEGER,
    next_at        INTEGER,
    counted_ok     INTEGER NOT NULL,
    counted_failed INTEGER NOT NULL,
    -- When a letter last had its turn, from 0; NULL when every letter has its outcome.
    served_at      INTEGER
);
CREATE INDEX operations_live ON operations (served_at, operation) WHERE served_at IS NOT NULL;

-- The operation for which a lease was taken, and the one whose turns are not over in a sequence that it has begun.
ALTER TABLE sequences ADD COLUMN lease_operation INTEGER;
ALTER TABLE sequences ADD COLUMN reserved INTEGER;
CREATE INDEX sequences_operation ON sequences (lease_operation) WHERE lease_operation IS NOT NULL;
CREATE INDEX sequences_reserved ON sequences (reserved) WHERE reserved IS NOT NULL;
