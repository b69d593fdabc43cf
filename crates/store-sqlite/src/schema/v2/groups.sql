CREATE TABLE groups (
    gid         INTEGER PRIMARY KEY,
    qid         INTEGER NOT NULL,
    fingerprint TEXT    NOT NULL,
    reason      TEXT    NOT NULL DEFAULT '',
    error_type  TEXT    NOT NULL DEFAULT '',
    message     TEXT    NOT NULL DEFAULT '',
    retrying    INTEGER NOT NULL DEFAULT 0,
    dead        INTEGER NOT NULL DEFAULT 0,
    parked      INTEGER NOT NULL DEFAULT 0,
    quarantined INTEGER NOT NULL DEFAULT 0,
    waiting     INTEGER NOT NULL DEFAULT 0,
    resolved    INTEGER NOT NULL DEFAULT 0,
    evicted     INTEGER NOT NULL DEFAULT 0,
    skipped     INTEGER NOT NULL DEFAULT 0,
    expired     INTEGER NOT NULL DEFAULT 0,
    open        INTEGER GENERATED ALWAYS AS (retrying + dead + parked + quarantined + waiting) VIRTUAL,
    sequences   INTEGER NOT NULL DEFAULT 0,
    behind      INTEGER NOT NULL DEFAULT 0,
    first_seen  INTEGER NOT NULL DEFAULT 0,
    last_seen   INTEGER NOT NULL DEFAULT 0,
    trend       TEXT    NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX groups_name ON groups (qid, fingerprint);
CREATE INDEX groups_open ON groups (open, gid);
CREATE INDEX groups_of_queue ON groups (qid, open, gid);

ALTER TABLE sequences ADD COLUMN head_gid INTEGER;

ALTER TABLE letters ADD COLUMN gid INTEGER;
ALTER TABLE letters ADD COLUMN closed_at INTEGER;
UPDATE letters SET closed_at = touched_at WHERE sid IS NULL;
CREATE INDEX letters_oldest ON letters (qid) WHERE sid IS NOT NULL;
CREATE INDEX letters_group ON letters (gid) WHERE sid IS NOT NULL AND gid IS NOT NULL;
CREATE INDEX letters_expiring ON letters (qid, expires_at) WHERE sid IS NOT NULL AND expires_at IS NOT NULL;
CREATE INDEX letters_closed ON letters (qid, closed_at) WHERE closed_at IS NOT NULL;
