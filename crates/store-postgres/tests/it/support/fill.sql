-- Rows for the planner: three queues with most letters in the first, the older half of them open, the later half closed, most of them with one reason and group.
INSERT INTO queues (qid, name, consumer) OVERRIDING SYSTEM VALUE
    VALUES (1, 'orders/orders', 'orders'), (2, 'mails/mails', 'mails'), (3, 'bills/bills', 'bills');
INSERT INTO counts SELECT qid, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 FROM queues;
INSERT INTO failure_groups SELECT 1 + n % 3, 'g1_' || lpad(n::text, 16, '0'), 'TIMEOUT', 'HttpError', 'boom', 1, 1, 1, 1, 'null', '{1,1,1,1,1}'
    FROM generate_series(0, 29) AS n;
INSERT INTO letters (lid, id, qid, sid, idx, state, attempts, crash_attempts, replay_attempts, poison, enqueued_at, touched_at, due_at,
        expires_at, closed_at, partition, position, stream, sequence, message, event_type, reason, cause_group, payload_left_out, edits, body)
    SELECT n, md5(n::text)::uuid, CASE WHEN n % 10 > 1 THEN 1 ELSE 2 + n % 10 END, CASE WHEN n <= 3000 THEN n / 3 + 1 END, n, 1, 1, 0, 0, false, n, n, n,
        CASE WHEN n % 2 = 0 THEN n END, CASE WHEN n > 3000 THEN n END, 0, n, 'orders', 'k' || n / 3, 'm' || n, 't' || n % 7,
        CASE WHEN n % 10 < 8 THEN 'TIMEOUT' ELSE 'BROKEN' END, 'g1_' || lpad((n % 10 / 8)::text, 16, '0'), false, 0,
        json_build_object('text', repeat(md5(n::text), 8))
    FROM generate_series(1, 6000) AS n;
INSERT INTO payloads SELECT lid, NULL, NULL, '{}' FROM letters;
INSERT INTO sequences (sid, qid, hash, name, revision, count, head_idx, touched, paused, lease_until, free_at)
    SELECT n, 1 + n % 3, md5(n::text)::uuid, 'k' || n, n, 3, n, n, false, CASE WHEN n % 20 = 0 THEN n END, CASE WHEN n % 2 = 0 THEN n END
    FROM generate_series(1, 1001) AS n;
INSERT INTO audit SELECT n, n, 'ada', 'cli', 'why', 'evict', 'letter ' || n % 500, NULL, NULL, '', '' FROM generate_series(1, 6000) AS n;
INSERT INTO group_notes (qid, fingerprint, at, open, changes)
    SELECT 1 + n % 3, 'g1_' || lpad((n % 30)::text, 16, '0'), n, 1, '{}' FROM generate_series(1, 3000) AS n;
ANALYZE queues, counts, failure_groups, group_notes, letters, payloads, sequences, audit;
