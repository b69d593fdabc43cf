-- The leases of a queue, which the first claim of a process looks through.
CREATE INDEX sequences_leased ON sequences (qid, lease_until) WHERE lease_until IS NOT NULL;

-- The queues whose ended letters are listed. A call that ends letters locks its row until the commit: no number appears after a later one.
CREATE TABLE watched (
    qid    bigint  PRIMARY KEY,
    -- A queue that is no longer watched keeps its row: numbers are not used again.
    active boolean NOT NULL,
    -- The last number.
    last   bigint  NOT NULL
) WITH (fillfactor = 50);

-- The letters that ended, until they were announced.
CREATE TABLE ends (
    qid      bigint   NOT NULL,
    number   bigint   NOT NULL,
    letter   uuid     NOT NULL,
    state    smallint NOT NULL,
    attempts bigint   NOT NULL,
    PRIMARY KEY (qid, number)
);
