-- What finding letters needs. Only open letters are indexed: there a rare one has to be found among many, and an index
-- over closed letters would grow for ever. All of these grow at the ends of their keys, because row ids do.
ALTER TABLE letters ADD COLUMN reason TEXT;
UPDATE letters SET reason = json_extract(CAST(substr(body, 2) AS TEXT), '$.cause.reason')
    WHERE json_valid(CAST(substr(body, 2) AS TEXT));
CREATE INDEX letters_type ON letters (event_type) WHERE sid IS NOT NULL;
CREATE INDEX letters_reason ON letters (reason) WHERE sid IS NOT NULL;
CREATE INDEX IF NOT EXISTS letters_oldest ON letters (qid) WHERE sid IS NOT NULL;
