-- Which records of the redo log count: those of this database, and of the transaction that was not committed.
CREATE TABLE redo (
    id         BLOB    NOT NULL,
    generation INTEGER NOT NULL
);
INSERT INTO redo (id, generation) VALUES (randomblob(16), 1);
