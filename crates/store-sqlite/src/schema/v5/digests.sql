-- The digest of the payload, which tells another payload under a known message id apart; NULL for messages without an id of their
-- own, and for messages of older versions.
ALTER TABLE posts ADD COLUMN digest BLOB;
ALTER TABLE consumed_posts ADD COLUMN digest BLOB;

-- The digest of the letter's payload when its plan was frozen; NULL in plans of older versions, and for letters without a payload.
ALTER TABLE items ADD COLUMN digest BLOB;
