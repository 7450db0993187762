-- What callers change about jobs that exist: redrive, update; and what explains where a job stands.
-- Read after `queries.sql`, whose fragments it may use.

-- name: redrives
-- Where jobs stand, and where the last job that repeats each stands.
SELECT j.id, j.state, j.redrive_id, n.state, j.unique_key
  FROM unnest(%(ids)b) AS r (id)
  JOIN jobs j ON j.id = r.id AND j.namespace = %(namespace)s
  LEFT JOIN jobs n ON n.id = j.redrive_id

-- name: redrive, writes
-- Repeat jobs that ended without success, each as a new one. `seen` is the redrive that the caller found
-- ended: of two callers at once one finds it changed. A deadline that has passed is not taken over.
WITH meta AS MATERIALIZED ({numbered}), origins AS (
    UPDATE jobs j SET redrive_id = r.new_id
      FROM meta m
     CROSS JOIN unnest(%(ids)b, %(new_ids)b, %(seen)b) AS r (id, new_id, seen)
     WHERE j.id = r.id AND j.state IN (5, 6, 7) AND j.redrive_id IS NOT DISTINCT FROM r.seen
       AND m.epoch <= %(epoch)s
    RETURNING j.*
), stored AS (
    INSERT INTO jobs (
        id, namespace, type, state, version, priority, create_time, due_time, first_due_time,
        expire_time, timeouts, retry, labels, input, input_type, input_ref, unique_key, traceparent,
        origin_id, concurrency_key, unique_policy)
    SELECT o.redrive_id, o.namespace, o.type, 1, 1, o.priority, m.now, m.now, m.now,
           CASE WHEN o.timeouts ->> 'start' IS NOT NULL
                THEN m.now + (o.timeouts ->> 'start')::bigint * interval '1 millisecond'
                WHEN o.expire_time > m.now THEN o.expire_time END,
           o.timeouts, o.retry, o.labels, o.input, o.input_type, o.input_ref, o.unique_key,
           %(traceparent)s::text, o.id, o.concurrency_key, o.unique_policy
      FROM meta m CROSS JOIN origins o
{put_tail}
SELECT m.epoch, m.now, s.id, s.origin_id, s.due_time, s.namespace, s.type, s.labels
  FROM meta m LEFT JOIN stored s ON true

-- fragment: changed_tail
-- The event of jobs that were changed while they wait, and their labels. The job's row said when it was first
-- due, and with that its first event: that gets a row, unless it has one.
remembered AS (
    INSERT INTO event_rows (job_id, version, state, reason, time, due_time)
    SELECT c.id, 1, 1, CASE WHEN c.origin_id IS NULL THEN 1 ELSE 17 END, c.create_time, c.old_first_due_time
      FROM changed c WHERE c.first_due_time <> c.old_first_due_time
    ON CONFLICT DO NOTHING
), logged AS (
    INSERT INTO event_rows (job_id, version, state, reason, time, attempt, dispatch_no, due_time)
    SELECT c.id, c.version, c.state, 15, c.now, c.attempt, c.dispatch_no,
           CASE c.state WHEN 1 THEN c.due_time END
      FROM changed c
), unlabelled AS (
    DELETE FROM job_terms t
     USING changed c CROSS JOIN LATERAL jsonb_each_text(c.old_labels) AS l
     WHERE t.namespace = c.namespace AND t.name = l.key AND t.value = l.value AND t.job_id = c.id
       AND coalesce(c.labels ->> l.key <> l.value, true)
), labelled AS (
    INSERT INTO job_terms (namespace, name, value, job_id)
    SELECT c.namespace, l.key, l.value, c.id
      FROM changed c CROSS JOIN LATERAL jsonb_each_text(c.labels) AS l
     WHERE coalesce(c.old_labels ->> l.key <> l.value, true)
    -- One that is there already, left behind by changes that once overtook each other, says the same.
    ON CONFLICT DO NOTHING
), committed AS (
    INSERT INTO commits (size, job_ids, versions)
    SELECT count(*), array_agg(c.id), array_agg(c.version) FROM changed c HAVING count(*) > 0
)

-- name: update_job, writes
-- Change a job that waits. Its row in the queue is locked first, as a claim does: whoever comes second
-- finds the job taken, or changed. A BLOCKED one has none. The start timeout counts from the new time.
-- A row that was changed since the statement began is locked, but not seen: then nothing is done. Of a BLOCKED job
-- the version says so: what another change wrote about its labels is not seen either, and would stay.
WITH clock AS MATERIALIZED ({timed}), held AS MATERIALIZED (
    SELECT q.ctid AS place, q.job_id, j.version, j.attempt > 0 OR {snoozed} AS started, d.due,
           CASE WHEN NOT %(set_time)s OR j.timeouts ->> 'start' IS NULL THEN j.expire_time
                WHEN j.expire_time = j.first_due_time + s.start THEN least(d.due + s.start, {latest})
                ELSE least(j.expire_time, d.due + s.start) END AS expire_time
      FROM jobs j
      JOIN queue q ON q.type = j.type AND q.priority = j.priority AND q.due_time = j.due_time
                  AND q.job_id = j.id
     CROSS JOIN clock t
     CROSS JOIN LATERAL (
               SELECT CASE WHEN %(set_time)s THEN greatest(t.now, %(due_time)s::timestamptz)
                           ELSE j.due_time END
           ) AS d (due)
     CROSS JOIN LATERAL (
               SELECT (j.timeouts ->> 'start')::bigint * interval '1 millisecond'
           ) AS s (start)
     WHERE j.id = %(id)s AND j.namespace = %(namespace)s AND j.state = 1
       FOR UPDATE OF q
), place AS MATERIALIZED (
    SELECT h.* FROM held h WHERE EXISTS (SELECT FROM queue q WHERE q.ctid = h.place)
), target AS (
    SELECT p.* FROM place p
    UNION ALL
    -- BLOCKED: in no queue, and its start timeout has not begun.
    SELECT NULL::tid, j.id, j.version, false,
           CASE WHEN %(set_time)s THEN greatest(t.now, %(due_time)s::timestamptz) ELSE j.due_time END,
           j.expire_time
      FROM jobs j CROSS JOIN clock t
     WHERE j.id = %(id)s AND j.namespace = %(namespace)s AND j.state = 8
), changed AS (
    UPDATE jobs j
       SET version = j.version + 1,
           due_time = CASE WHEN %(set_time)s THEN p.due ELSE j.due_time END,
           expire_time = CASE WHEN p.place IS NULL THEN j.expire_time ELSE p.expire_time END,
           first_due_time = CASE WHEN %(set_time)s AND NOT p.started THEN p.due ELSE j.first_due_time END,
           priority = coalesce(%(priority)s::smallint, j.priority),
           labels = CASE WHEN %(set_labels)s THEN %(labels)s::text::jsonb ELSE j.labels END
      FROM target p
     WHERE j.id = p.job_id AND j.state = CASE WHEN p.place IS NULL THEN 8 ELSE 1 END AND j.version = p.version
       AND (%(version)s::bigint = 0 OR j.version = %(version)s::bigint)
       AND (NOT %(set_time)s OR p.started OR p.expire_time IS NULL OR p.expire_time > p.due)
    RETURNING j.id, j.namespace, j.type, j.state, j.version, j.attempt, j.dispatch_no, j.due_time,
              clock_timestamp() AS now,
              j.priority, j.expire_time, j.labels, old.labels AS old_labels,
              total_end(j.first_due_time, j.timeouts) AS total_end,
              j.create_time, j.origin_id, j.first_due_time, old.first_due_time AS old_first_due_time
), moved AS (
    UPDATE queue q
       SET priority = c.priority, due_time = c.due_time, later = c.due_time > c.now,
           expire_time = least(CASE WHEN NOT p.started THEN c.expire_time END, c.total_end)
      FROM place p JOIN changed c ON c.id = p.job_id
     WHERE q.ctid = p.place
), {changed_tail}
SELECT c.id, c.namespace, c.type, c.version, c.attempt, c.dispatch_no, c.due_time, c.now, c.labels,
       c.state
  FROM changed c

-- name: waiting
-- What may stand in the way of a change.
SELECT j.state, j.version, CASE WHEN j.attempt = 0 AND NOT {snoozed} THEN j.expire_time END, clock_timestamp()
  FROM jobs j
 WHERE j.id = %(id)s AND j.namespace = %(namespace)s

-- name: jobs_ahead
-- The due jobs of a type that stand before one in the line, counted up to a cap; and the shard's now.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now)
SELECT c.now, higher.count + sooner.count
  FROM clock c
 CROSS JOIN LATERAL (
     SELECT count(*) FROM (
         SELECT FROM queue q
          WHERE q.type = %(type)s AND q.priority > %(priority)s AND q.due_time <= c.now
            AND q.due_time >= (SELECT floor_of(f, %(type)s::text) FROM floors f)
          LIMIT %(cap)s) AS counted
 ) AS higher
 CROSS JOIN LATERAL (
     SELECT count(*) FROM (
         SELECT FROM queue q
          WHERE q.type = %(type)s AND q.priority = %(priority)s AND q.due_time <= c.now
            AND q.due_time >= (SELECT floor_of(f, %(type)s::text) FROM floors f)
            AND (q.due_time, q.job_id) < (%(due_time)s::timestamptz, %(id)s::uuid)
          LIMIT %(cap)s) AS counted
 ) AS sooner

-- name: recent_claims
-- How many jobs of a type were claimed in the newest commits, and how long ago the oldest of these was.
WITH recent AS MATERIALIZED (
    SELECT c.time, r.id, r.version
      FROM (SELECT * FROM commits ORDER BY xid DESC LIMIT 200) AS c
     CROSS JOIN LATERAL unnest(c.job_ids, c.versions) AS r (id, version)
     WHERE c.time > clock_timestamp() - interval '60 seconds'
     LIMIT 2000
)
SELECT (SELECT count(*)
          FROM recent r
         CROSS JOIN LATERAL (SELECT FROM jobs j WHERE j.id = r.id AND j.type = %(type)s OFFSET 0) AS j
         CROSS JOIN LATERAL events_between(r.id, r.version, r.version) AS e
         WHERE e.reason = 2),
       clock_timestamp() - (SELECT min(r.time) FROM recent r)
