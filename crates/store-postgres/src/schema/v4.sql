-- Searches by group, reason and type look for a hash of eight bytes, which costs a hand-off less than a text. The text is compared as well.
DROP INDEX letters_group, letters_reason, letters_type;
CREATE INDEX letters_group ON letters (qid, hashtextextended(cause_group, 0), lid)
    WHERE sid IS NOT NULL AND cause_group IS NOT NULL;
CREATE INDEX letters_reason ON letters (hashtextextended(reason, 0), lid) WHERE sid IS NOT NULL AND reason IS NOT NULL;
CREATE INDEX letters_type ON letters (hashtextextended(event_type, 0), lid) WHERE sid IS NOT NULL AND event_type IS NOT NULL;
