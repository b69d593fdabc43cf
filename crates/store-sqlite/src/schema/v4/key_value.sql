-- Small values by name: checkpoints, locks, and the messages that were handled.
CREATE TABLE key_values (
    kid        INTEGER PRIMARY KEY,
    space      TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    value      BLOB    NOT NULL,
    version    INTEGER NOT NULL,
    expires_at INTEGER
);
CREATE UNIQUE INDEX key_values_name ON key_values (space, name);
CREATE INDEX key_values_expiring ON key_values (expires_at) WHERE expires_at IS NOT NULL;
