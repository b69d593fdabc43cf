-- Also the letters that have their outcome: erasing a letter removes the digest of its payload from all plans.
DROP INDEX items_letter;
CREATE INDEX items_letter ON items (letter);
