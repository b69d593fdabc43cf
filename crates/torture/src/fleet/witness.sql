-- Notes who takes what, and who writes what: the witness of a run. It knows sessions, not fences.
--
-- All notes of a transaction are made while it holds the locks of what they are about, so for each thing their order is that of the
-- commits.
CREATE SCHEMA witness;

CREATE TABLE witness.notes (
    note    bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    txn     bigint  NOT NULL DEFAULT txid_current(),
    session text    NOT NULL DEFAULT current_setting('application_name'),
    -- It takes the thing, or it writes what only its owner may write.
    takes   boolean NOT NULL,
    thing   text    NOT NULL,
    key     bigint  NOT NULL,
    what    text    NOT NULL
);

-- A grant: its partition is taken.
CREATE FUNCTION witness.of_grants() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.fence > (CASE WHEN TG_OP = 'UPDATE' THEN OLD.fence ELSE 0 END) THEN
        INSERT INTO witness.notes (takes, thing, key, what)
            VALUES (true, 'partition', NEW.partition, 'grant ' || NEW.fence);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER witness AFTER INSERT OR UPDATE ON lazaret.grants
    FOR EACH ROW EXECUTE FUNCTION witness.of_grants();

-- A lease: its sequence is taken.
CREATE FUNCTION witness.of_sequences() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.lease_fence IS NOT NULL
        AND NEW.lease_fence IS DISTINCT FROM (CASE WHEN TG_OP = 'UPDATE' THEN OLD.lease_fence END) THEN
        INSERT INTO witness.notes (takes, thing, key, what)
            VALUES (true, 'sequence', NEW.sid, 'lease ' || NEW.lease_fence);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER witness AFTER INSERT OR UPDATE ON lazaret.sequences
    FOR EACH ROW EXECUTE FUNCTION witness.of_sequences();

-- A new letter is written for its partition; an attempt, or the end of a letter, for its sequence.
CREATE FUNCTION witness.of_letters() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO witness.notes (takes, thing, key, what)
            VALUES (false, 'partition', NEW.partition, 'letter of ' || NEW.message);
    ELSIF OLD.sid IS NOT NULL AND (NEW.sid IS NULL OR NEW.attempts > OLD.attempts) THEN
        INSERT INTO witness.notes (takes, thing, key, what)
            VALUES (false, 'sequence', OLD.sid, 'outcome of ' || NEW.message);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER witness AFTER INSERT OR UPDATE ON lazaret.letters
    FOR EACH ROW EXECUTE FUNCTION witness.of_letters();

-- A reader takes an inbox, and writes what is consumed.
CREATE FUNCTION witness.of_inboxes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.fence <> OLD.fence THEN
        INSERT INTO witness.notes (takes, thing, key, what)
            VALUES (true, 'inbox', NEW.log, 'lease ' || NEW.fence);
    END IF;
    IF NEW.consumed <> OLD.consumed OR NEW.settled::text <> OLD.settled::text THEN
        INSERT INTO witness.notes (takes, thing, key, what)
            VALUES (false, 'inbox', NEW.log, 'position ' || NEW.consumed);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER witness AFTER UPDATE ON lazaret.inboxes
    FOR EACH ROW EXECUTE FUNCTION witness.of_inboxes();
