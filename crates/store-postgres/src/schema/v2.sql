-- One row per inbox: its numbers, and the lease of the instance that reads it. Posts lock it, so positions become visible in order.
CREATE TABLE inboxes (
    log         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer    text   COLLATE "C" NOT NULL UNIQUE,
    -- The next position.
    next        bigint NOT NULL DEFAULT 0,
    -- The messages below this position are consumed.
    consumed    bigint NOT NULL DEFAULT 0,
    -- Settled ranges beyond it.
    settled     json   NOT NULL DEFAULT '[]',
    -- What waits to be consumed.
    messages    bigint NOT NULL DEFAULT 0,
    bytes       bigint NOT NULL DEFAULT 0,
    reader      text,
    fence       bigint NOT NULL DEFAULT 0,
    lease_until bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- The messages that wait. They are deleted when they are consumed.
CREATE TABLE inbox_messages (
    log          bigint NOT NULL,
    position     bigint NOT NULL,
    message      text   COLLATE "C" NOT NULL,
    size         bigint NOT NULL,
    event_type   text,
    content_type text,
    correlation  text,
    undecodable  text,
    at           bigint NOT NULL,
    key          bytea,
    headers      bytea,
    payload      bytea,
    PRIMARY KEY (log, position)
);

-- The ids that senders gave: of the messages that wait, and of consumed ones until their window ends.
CREATE TABLE inbox_ids (
    log      bigint NOT NULL,
    -- Of the id, which may be longer than an entry of an index.
    hash     uuid   NOT NULL,
    position bigint NOT NULL,
    digest   bytea  NOT NULL,
    until    bigint,
    PRIMARY KEY (log, hash)
);
CREATE INDEX inbox_ids_position ON inbox_ids (log, position) WHERE until IS NULL;
CREATE INDEX inbox_ids_until ON inbox_ids (until) WHERE until IS NOT NULL;
