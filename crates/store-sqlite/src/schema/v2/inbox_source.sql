CREATE TABLE inbox_logs (
    log       INTEGER PRIMARY KEY,
    consumer  TEXT    NOT NULL UNIQUE,
    next      INTEGER NOT NULL DEFAULT 0,
    committed INTEGER,
    messages  INTEGER NOT NULL DEFAULT 0,
    bytes     INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE inbox_settled (
    log    INTEGER PRIMARY KEY,
    ranges TEXT    NOT NULL
);

CREATE TABLE posts (
    pid          INTEGER PRIMARY KEY,
    log          INTEGER NOT NULL,
    position     INTEGER NOT NULL,
    message      TEXT    NOT NULL,
    size         INTEGER NOT NULL,
    event_type   TEXT,
    content_type TEXT,
    correlation  TEXT,
    undecodable  TEXT,
    at           INTEGER NOT NULL,
    key          BLOB,
    headers      BLOB,
    payload      BLOB
);
CREATE UNIQUE INDEX posts_position ON posts (log, position);
CREATE UNIQUE INDEX posts_message ON posts (log, message);

CREATE TABLE consumed_posts (
    cid      INTEGER PRIMARY KEY,
    log      INTEGER NOT NULL,
    message  TEXT    NOT NULL,
    position INTEGER NOT NULL,
    until    INTEGER NOT NULL
);
CREATE UNIQUE INDEX consumed_posts_message ON consumed_posts (log, message);
CREATE INDEX consumed_posts_until ON consumed_posts (until);
