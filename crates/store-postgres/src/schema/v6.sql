-- Processes of older versions change these rows in each call. They must fail now, and not count beside the notes.
ALTER TABLE groups RENAME TO failure_groups;

-- What calls have changed in groups, until it is added to their rows. Calls only insert here, so those with the same failure do not wait
-- for each other.
CREATE TABLE group_notes (
    qid         bigint NOT NULL,
    fingerprint text   COLLATE "C" NOT NULL,
    number      bigint GENERATED ALWAYS AS IDENTITY,
    -- The time of the call.
    at          bigint NOT NULL,
    -- By how many letters the open ones changed.
    open        bigint NOT NULL,
    changes     json   NOT NULL,
    PRIMARY KEY (qid, fingerprint, number)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
