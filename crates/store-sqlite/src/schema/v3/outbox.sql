-- Queues whose ends somebody watches, and the ends that were not forgotten yet.
CREATE TABLE watched (qid INTEGER PRIMARY KEY);

CREATE TABLE ends (
    number   INTEGER PRIMARY KEY AUTOINCREMENT,
    qid      INTEGER NOT NULL,
    letter   BLOB    NOT NULL,
    state    INTEGER NOT NULL,
    attempts INTEGER NOT NULL
);
CREATE INDEX ends_of_queue ON ends (qid, number);
