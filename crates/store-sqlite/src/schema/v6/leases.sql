-- The leases of a queue, which the first claim of a process looks through.
CREATE INDEX sequences_leased ON sequences (qid, lease_until) WHERE lease_until IS NOT NULL;
