-- What ties jobs to each other: dependencies and unique keys. Jobs without either never come here.
-- Read after `queries.sql` and `changes.sql`, whose fragments it may use.

-- name: put_tied_jobs, writes
-- Store those jobs that are new and whose unique keys are free; those that wait for others are BLOCKED.
-- Writers of one key wait for each other at its row; a repeated request must not take it anew.
WITH meta AS MATERIALIZED ({numbered}), keyed AS (
    INSERT INTO unique_keys (namespace, key, job_id)
    SELECT n.namespace, n.unique_key, n.id
      FROM meta m
     CROSS JOIN unnest(%(ids)b, %(namespaces)b, %(keys)b, %(unique_keys)b) WITH ORDINALITY
                AS n (id, namespace, idempotency_key, unique_key, place)
     WHERE n.unique_key IS NOT NULL AND m.epoch <= %(epoch)s
       AND NOT EXISTS (SELECT FROM jobs j WHERE j.id = n.id)
       AND NOT EXISTS (SELECT FROM jobs j
                        WHERE j.namespace = n.namespace AND j.idempotency_key = n.idempotency_key)
     ORDER BY n.place
    ON CONFLICT DO NOTHING
    RETURNING job_id
), stored AS (
    INSERT INTO jobs (state, version, blockers, unique_key, unique_policy, dependencies, {put_columns})
    SELECT CASE WHEN n.blockers > 0 THEN 8 ELSE 1 END, 1, n.blockers, n.unique_key, n.unique_policy,
           n.dependencies::jsonb, {put_values}
      FROM meta m
     CROSS JOIN unnest({put_arrays}, %(blockers)b, %(unique_keys)b, %(unique_policies)b, %(dependencies)b)
                AS n ({put_names}, blockers, unique_key, unique_policy, dependencies)
     {put_times}
     WHERE m.epoch <= %(epoch)s
       AND (n.unique_key IS NULL OR n.id IN (SELECT k.job_id FROM keyed k))
    ON CONFLICT DO NOTHING
{put_tail}, waiting AS (
    INSERT INTO waits (parent_id, child_id, policy)
    SELECT w.parent_id, w.child_id, w.policy
      FROM unnest(%(parents)b, %(children)b, %(policies)b) AS w (parent_id, child_id, policy)
     WHERE w.child_id IN (SELECT s.id FROM stored s)
), kept_back AS (
    INSERT INTO blocked (job_id, check_time, expire_time)
    SELECT s.id, m.now + interval '5 seconds', s.expire_time
      FROM meta m CROSS JOIN stored s WHERE s.state = 8
)
SELECT m.epoch, m.now, s.id, s.due_time, s.state
  FROM meta m LEFT JOIN stored s ON true

-- name: key_holders
-- The jobs that hold unique keys. A key without a live job is free: somebody forgot to give it back.
SELECT n.place, u.job_id, j.request_hash, j.state, j.version, j.due_time, j.create_time
  FROM unnest(%(namespaces)b, %(unique_keys)b) WITH ORDINALITY AS n (namespace, unique_key, place)
  JOIN unique_keys u ON u.namespace = n.namespace AND u.key = n.unique_key
  LEFT JOIN jobs j ON j.id = u.job_id AND j.state IN (1, 2, 3, 8)

-- name: free_keys, writes
-- Give back keys that no live job holds. A key and its job are stored by one statement, so a key whose
-- job cannot be seen has none.
DELETE FROM unique_keys u
 USING unnest(%(namespaces)b, %(unique_keys)b, %(ids)b) AS n (namespace, unique_key, job_id)
 WHERE u.namespace = n.namespace AND u.key = n.unique_key AND u.job_id = n.job_id
   AND NOT EXISTS (SELECT FROM jobs j WHERE j.id = u.job_id AND j.state IN (1, 2, 3, 8))

-- name: take_keys, writes
-- The unique keys of jobs that are repeated, for the jobs that repeat them; which of these got theirs.
INSERT INTO unique_keys (namespace, key, job_id)
SELECT %(namespace)s, n.unique_key, n.new_id
  FROM unnest(%(unique_keys)b, %(new_ids)b) WITH ORDINALITY AS n (unique_key, new_id, place)
 ORDER BY n.place
ON CONFLICT DO NOTHING
RETURNING job_id

-- name: replace_job, writes
-- Give a job that was never handed to a worker the content of a newer submission. Its row in the queue
-- is locked first, as a claim does; if it was changed since the statement began, nothing is done. Of a BLOCKED job
-- its version says that, as in `update_job`.
WITH clock AS MATERIALIZED ({timed}), held AS MATERIALIZED (
    SELECT q.ctid AS place, j.version
      FROM jobs j
      JOIN queue q ON q.type = j.type AND q.priority = j.priority AND q.due_time = j.due_time
                  AND q.job_id = j.id
     WHERE j.id = %(id)s AND j.state = 1 AND j.dispatch_no = 0
       FOR UPDATE OF q
), place AS MATERIALIZED (
    SELECT h.* FROM held h WHERE EXISTS (SELECT FROM queue q WHERE q.ctid = h.place)
), target AS (
    SELECT p.* FROM place p
    UNION ALL
    SELECT NULL::tid, j.version FROM jobs j WHERE j.id = %(id)s AND j.state = 8
), changed AS (
    UPDATE jobs j
       SET version = j.version + 1, due_time = d.ready, first_due_time = d.ready,
           expire_time = least(%(expire_time)s::timestamptz, CASE j.state WHEN 1 THEN
               least(d.ready + %(start_ms)s::bigint * interval '1 millisecond',
                     CASE WHEN %(start_ms)s::bigint IS NOT NULL THEN {latest} END) END),
           priority = %(priority)s::smallint, labels = %(labels)s::text::jsonb,
           timeouts = %(timeouts)s::text::jsonb, retry = %(retry)s::text::jsonb, input = %(input)s::bytea,
           input_type = %(input_type)s::text, input_ref = %(input_ref)s::text::jsonb,
           concurrency_key = %(concurrency_key)s::text, unique_policy = %(unique_policy)s::smallint
      FROM target p
     CROSS JOIN clock t
     CROSS JOIN LATERAL (
               SELECT greatest(t.now, %(due_time)s::timestamptz,
                               t.now + %(delay_ms)s::bigint * interval '1 millisecond')
           ) AS d (ready)
     WHERE j.id = %(id)s AND j.type = %(type)s AND j.dispatch_no = 0
       AND j.state = CASE WHEN p.place IS NULL THEN 8 ELSE 1 END AND j.version = p.version
    RETURNING j.id, j.namespace, j.type, j.state, j.version, j.attempt, j.dispatch_no, j.due_time,
              clock_timestamp() AS now, j.priority, j.expire_time, j.labels, old.labels AS old_labels,
              j.create_time, total_end(j.first_due_time, j.timeouts) AS total_end, j.concurrency_key,
              j.origin_id, j.first_due_time, old.first_due_time AS old_first_due_time
), moved AS (
    UPDATE queue q
       SET priority = c.priority, due_time = c.due_time, later = c.due_time > c.now,
           expire_time = least(c.expire_time, c.total_end),
           limit_key = md5(c.namespace || '/' || c.concurrency_key)::uuid
      FROM place p CROSS JOIN changed c
     WHERE q.ctid = p.place
), expiring AS (
    UPDATE blocked b SET expire_time = c.expire_time FROM changed c WHERE b.job_id = c.id
), {changed_tail}
SELECT c.id, c.namespace, c.type, c.version, c.attempt, c.dispatch_no, c.due_time, c.now, c.labels,
       c.state, c.create_time
  FROM changed c

-- name: await_jobs, writes
-- Mark jobs as awaited, so that their end is told, and say how they stand. One that ends meanwhile may be
-- told as live: whoever stores a job that waits looks again afterwards.
WITH marked AS (
    UPDATE jobs j SET awaited = true
      FROM unnest(%(ids)b, %(namespaces)b) AS r (id, namespace)
     WHERE j.id = r.id AND j.namespace = r.namespace AND j.state IN (1, 2, 3, 8)
       AND j.awaited IS NOT TRUE
)
SELECT j.id, j.namespace, j.state, j.failure
  FROM unnest(%(ids)b, %(namespaces)b) AS r (id, namespace)
  JOIN jobs j ON j.id = r.id AND j.namespace = r.namespace

-- name: parents
-- How jobs stand that others wait for.
SELECT j.id, j.state, j.failure FROM unnest(%(ids)b) AS r (id) JOIN jobs j ON j.id = r.id

-- name: release, writes
-- Parents have ended: take them off those who wait for them. A job that waits for nobody else becomes
-- SCHEDULED; one that must not run without a parent's success ends. The count in the row lets parents
-- that end at the same time add up, whoever tells of them. Events are dated row by row, as in `succeed`.
WITH clock AS MATERIALIZED ({timed}), edges AS MATERIALIZED (
    SELECT w.ctid AS place, w.child_id,
           CASE WHEN p.succeeded OR w.policy = 2 THEN 0 ELSE w.policy END AS verdict, p.failure
      FROM unnest(%(parents)b, %(succeeded)b, %(failures)b) AS p (id, succeeded, failure)
      JOIN waits w ON w.parent_id = p.id
     LIMIT %(limit)s
       FOR UPDATE OF w
), gone AS (
    DELETE FROM waits w USING edges e WHERE w.ctid = e.place
), verdicts AS (
    -- Of several that end it at once, FAIL goes before CANCEL.
    SELECT e.child_id, count(*)::smallint AS ended,
           CASE max(e.verdict) WHEN 3 THEN 5 WHEN 1 THEN 6 END::smallint AS final,
           (array_agg(e.failure ORDER BY e.verdict DESC))[1] AS failure
      FROM edges e GROUP BY e.child_id ORDER BY e.child_id
), ended AS (
    UPDATE jobs j
       SET blockers = j.blockers - v.ended,
           state = coalesce(v.final, CASE WHEN j.blockers = v.ended THEN 1 ELSE 8 END),
           version = j.version + (v.final IS NOT NULL OR j.blockers = v.ended)::integer,
           due_time = CASE WHEN v.final IS NULL AND j.blockers = v.ended
               THEN greatest(j.due_time, t.now) ELSE j.due_time END,
           first_due_time = CASE WHEN v.final IS NULL AND j.blockers = v.ended
               THEN greatest(j.due_time, t.now) ELSE j.first_due_time END,
           -- It could not start before: only now does the start timeout begin.
           expire_time = CASE WHEN v.final IS NULL AND j.blockers = v.ended
               THEN least(j.expire_time, greatest(j.due_time, t.now)
                    + (j.timeouts ->> 'start')::bigint * interval '1 millisecond',
                    CASE WHEN j.timeouts ->> 'start' IS NOT NULL THEN {latest} END)
               ELSE j.expire_time END,
           end_time = CASE WHEN v.final IS NOT NULL THEN clock_timestamp() END,
           failure = CASE WHEN v.final IS NOT NULL THEN v.failure::jsonb END
      FROM verdicts v CROSS JOIN clock t
     WHERE j.id = v.child_id AND j.state = 8
    RETURNING j.id, j.namespace, j.type, j.state, j.version, j.priority, j.due_time,
              least(j.expire_time, total_end(j.first_due_time, j.timeouts)) AS expire_time,
              coalesce(j.end_time, clock_timestamp()) AS now, j.failure, j.concurrency_key,
              v.final IS NOT NULL AND j.awaited AS awaited,
              CASE WHEN v.final IS NOT NULL THEN j.unique_key END AS unique_key
), unblocked AS (
    DELETE FROM blocked b USING ended e WHERE b.job_id = e.id AND e.state <> 8
), {untied}, queued AS (
    INSERT INTO queue (job_id, type, priority, due_time, later, expire_time, limit_key, namespace)
    SELECT e.id, e.type, e.priority, e.due_time, e.due_time > e.now, e.expire_time,
           md5(e.namespace || '/' || e.concurrency_key)::uuid, e.namespace
      FROM ended e WHERE e.state = 1
), logged AS (
    INSERT INTO event_rows (job_id, version, state, reason, time, due_time, failure)
    SELECT e.id, e.version, e.state, CASE e.state WHEN 1 THEN 13 ELSE 14 END, e.now,
           CASE e.state WHEN 1 THEN e.due_time END, e.failure
      FROM ended e WHERE e.state <> 8
), marked AS (
    INSERT INTO job_terms (namespace, name, value, job_id)
    SELECT e.namespace, '~unsuccessful', '', e.id FROM ended e WHERE e.state IN (5, 6)
), committed AS (
    INSERT INTO commits (size, job_ids, versions)
    SELECT count(*), array_agg(c.id), array_agg(c.version)
      FROM ended c WHERE c.state <> 8 HAVING count(*) > 0
)
SELECT d.edges, e.id, e.namespace, e.type, e.state, e.version, e.due_time, e.now, e.failure, e.awaited
  FROM (SELECT count(*) AS edges FROM edges) AS d LEFT JOIN ended e ON e.state <> 8

-- name: expire_blocked, writes
-- End jobs whose expire time passed while they waited for others.
WITH late AS (
    SELECT b.job_id
      FROM blocked b
     WHERE b.expire_time IS NOT NULL AND b.expire_time <= (SELECT clock_timestamp())
     ORDER BY b.expire_time
     LIMIT %(limit)s
), ended AS (
    UPDATE jobs j
       SET state = 7, version = j.version + 1, end_time = clock_timestamp()
      FROM (SELECT job_id FROM late ORDER BY job_id) AS l
     WHERE j.id = l.job_id AND j.state = 8 AND j.expire_time <= clock_timestamp()
    RETURNING j.id, j.namespace, j.type, j.version, j.attempt, j.dispatch_no, j.worker_id, j.end_time,
              j.state, j.awaited, j.unique_key
), unblocked AS (
    DELETE FROM blocked b USING ended e WHERE b.job_id = e.id
), {untied}, logged AS (
    INSERT INTO event_rows (job_id, version, state, reason, time)
    SELECT e.id, e.version, 7, 11, e.end_time FROM ended e
), marked AS (
    INSERT INTO job_terms (namespace, name, value, job_id)
    SELECT e.namespace, '~unsuccessful', '', e.id FROM ended e
), committed AS (
    INSERT INTO commits (size, job_ids, versions)
    SELECT count(*), array_agg(c.id), array_agg(c.version) FROM ended c HAVING count(*) > 0
)
SELECT * FROM ended

-- name: take_ended_parents, writes
-- Awaited jobs that have ended and whose children are to be released. For a while nobody else gets them;
-- if they are not forgotten by then, they come up again.
WITH due AS (
    SELECT p.ctid AS place, p.job_id
      FROM ended_parents p
     WHERE p.look_time <= (SELECT clock_timestamp())
     ORDER BY p.look_time
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE ended_parents p SET look_time = clock_timestamp() + %(hold)s::interval
      FROM due d WHERE p.ctid = d.place
)
SELECT d.job_id, j.state, j.failure FROM due d LEFT JOIN jobs j ON j.id = d.job_id

-- name: forget_ended_parents, writes
-- Their children are released, in all shards: nobody waits for them any more.
WITH gone AS (
    DELETE FROM ended_parents p USING unnest(%(ids)b) AS r (id) WHERE p.job_id = r.id
)
UPDATE jobs j SET awaited = NULL
  FROM unnest(%(ids)b) AS r (id)
 WHERE j.id = r.id AND j.state IN (4, 5, 6, 7)

-- name: check_blocked, writes
-- The parents of jobs that have been BLOCKED for a while, the longer the more seldom.
WITH due AS (
    SELECT b.ctid AS place, b.job_id
      FROM blocked b
     WHERE b.check_time <= (SELECT clock_timestamp())
     ORDER BY b.check_time
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
), looked AS (
    UPDATE blocked b
       SET check_time = clock_timestamp() + greatest(interval '5 seconds',
               least(clock_timestamp() - j.create_time, interval '10 minutes'))
      FROM due d JOIN jobs j ON j.id = d.job_id
     WHERE b.ctid = d.place
)
SELECT DISTINCT w.parent_id FROM due d JOIN waits w ON w.child_id = d.job_id

-- name: waits_of
-- What a job still waits for.
SELECT w.parent_id FROM waits w WHERE w.child_id = %(id)s ORDER BY w.parent_id
