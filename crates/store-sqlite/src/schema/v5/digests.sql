-- Recognizes another payload under a known message id; NULL for messages without an id of their own, and for older ones.
ALTER TABLE posts ADD COLUMN digest BLOB;
ALTER TABLE consumed_posts ADD COLUMN digest BLOB;

-- The payload of a letter when its plan was frozen; NULL in older plans, and where the letter has none.
ALTER TABLE items ADD COLUMN digest BLOB;
