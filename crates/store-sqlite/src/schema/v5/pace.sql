-- The pace of letters that an operation with a rate has released, and how many letters stand behind those of a plan.
ALTER TABLE sequences ADD COLUMN pace_next INTEGER;
ALTER TABLE sequences ADD COLUMN pace_interval INTEGER;
ALTER TABLE sequences ADD COLUMN pace_left INTEGER;
ALTER TABLE operations ADD COLUMN released INTEGER NOT NULL DEFAULT 0;
ALTER TABLE plans ADD COLUMN followers INTEGER NOT NULL DEFAULT 0;
