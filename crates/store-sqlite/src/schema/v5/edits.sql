-- The payloads that edits of letters have replaced, a row for each, so that an edit does not rewrite those before it. `kept` is the size of
-- the originals up to this one; `letters.edits` is the number of the last one.
CREATE TABLE edits (
    lid      INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    who      TEXT    NOT NULL,
    at       INTEGER NOT NULL,
    why      TEXT    NOT NULL,
    kept     INTEGER NOT NULL,
    original BLOB,
    PRIMARY KEY (lid, number)
);
ALTER TABLE letters ADD COLUMN edits INTEGER NOT NULL DEFAULT 0;

-- Counts the changes of a letter: tells whether it is still the one that a reader has matched.
ALTER TABLE letters ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
