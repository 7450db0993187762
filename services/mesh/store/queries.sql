-- Every statement of the store. A name, a line of purpose, the statement.
-- "writes" marks those whose outcome is unknown when the connection is lost under way.
-- {name} inserts the fragment of that name. States: 1 SCHEDULED 2 DISPATCHED 3 RUNNING 4 SUCCEEDED
-- 5 FAILED 6 CANCELLED 7 EXPIRED 8 BLOCKED. Reasons: services.mesh.jobs.states.Cause.

-- name: probe
-- A sign of life, and what tells a restored copy from the shard it was taken from.
SELECT clock_timestamp(), incarnation, epoch,
       NOT (pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean),
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
       current_setting('synchronous_commit') <> 'off' AND current_setting('fsync')::boolean
           AND current_setting('full_page_writes')::boolean
  FROM shard_meta

-- name: raise_epoch, writes
-- Wait for the puts under way to end, then refuse older maps. The lock is that of epoch_in_force().
WITH alone AS MATERIALIZED (SELECT pg_advisory_xact_lock(7026250113))
UPDATE shard_meta SET epoch = greatest(epoch, %(epoch)s::bigint)
  FROM alone
RETURNING epoch

-- fragment: put_columns
-- What every new job has. Each has its value in put_values.
id, namespace, type, priority, create_time, due_time, first_due_time,
        expire_time, timeouts, retry, labels, input, input_type, input_ref,
        idempotency_key, request_hash, traceparent, schedule_id, nominal_time, origin_id,
        concurrency_key

-- fragment: latest
-- The last time that the services can read: a job due then, and a timeout later, would spoil every list it is in.
timestamptz '9999-12-31 23:59:59.999999+00'

-- fragment: put_values
-- From the columns of a batch (n), its reckoned time (d) and the clock (m).
n.id, n.namespace, n.type, n.priority, m.now,
           -- A run of a schedule is due at its nominal time, however late it is made.
           coalesce(CASE WHEN n.nominal_time IS NOT NULL THEN n.due_time END, d.ready), d.ready,
           least(n.expire_time, d.ready + n.start_ms * interval '1 millisecond',
                 CASE WHEN n.start_ms IS NOT NULL THEN {latest} END),
           n.timeouts::jsonb, n.retry::jsonb, n.labels::jsonb, n.input, n.input_type, n.input_ref::jsonb,
           n.idempotency_key, n.request_hash, n.traceparent, n.schedule_id, n.nominal_time, n.origin_id,
           n.concurrency_key

-- fragment: put_arrays
-- The columns of a batch of new jobs.
%(ids)b, %(namespaces)b, %(types)b, %(priorities)b, %(due_times)b, %(delays)b,
               %(expire_times)b, %(start_timeouts)b, %(timeouts)b, %(retries)b, %(labels)b,
               %(inputs)b, %(input_types)b, %(input_refs)b, %(keys)b, %(hashes)b, %(traceparents)b,
               %(schedule_ids)b, %(nominal_times)b, %(origin_ids)b, %(concurrency_keys)b

-- fragment: put_names
-- Their names, in the same order.
id, namespace, type, priority, due_time, delay_ms,
                   expire_time, start_ms, timeouts, retry, labels,
                   input, input_type, input_ref, idempotency_key, request_hash, traceparent,
                   schedule_id, nominal_time, origin_id, concurrency_key

-- fragment: put_times
-- When a new job is due.
CROSS JOIN LATERAL (
               SELECT greatest(m.now, n.due_time, m.now + n.delay_ms * interval '1 millisecond')
           ) AS d (ready)

-- fragment: numbered
-- The map epoch in force, and the clock. The transaction gets its number before the clock is read: by that
-- who raises the floors knows whether jobs that are due before some time are still being written.
SELECT n.epoch, CASE WHEN n.xid IS NOT NULL THEN clock_timestamp() END AS now
      FROM (SELECT epoch_in_force() AS epoch, pg_current_xact_id() AS xid OFFSET 0) AS n

-- fragment: timed
-- The clock alone, in the same way: for who changes jobs. It may wait for a row afterwards, as long as it has a number.
SELECT CASE WHEN n.xid IS NOT NULL THEN clock_timestamp() END AS now
      FROM (SELECT pg_current_xact_id() AS xid OFFSET 0) AS n

-- fragment: put_head
-- New jobs from their columns, unless the map is outdated.
WITH meta AS MATERIALIZED ({numbered}), stored AS (
    INSERT INTO jobs (state, version, {put_columns})
    SELECT 1, 1, {put_values}
      FROM meta m
     CROSS JOIN unnest({put_arrays}) AS n ({put_names})
     {put_times}
     WHERE m.epoch <= %(epoch)s

-- fragment: labelled
-- Their labels, by which they are found.
labelled AS (
    INSERT INTO job_terms (namespace, name, value, job_id)
    SELECT s.namespace, l.key, l.value, s.id
      FROM stored s CROSS JOIN LATERAL jsonb_each_text(s.labels) AS l
     WHERE s.labels IS NOT NULL
)

-- fragment: put_tail
-- Their places in the queue, their labels; and their first events, where their rows do not say them: those
-- are SCHEDULED since they were made, and due when they were first due (see events_between).
    RETURNING id, namespace, type, state, priority, due_time, expire_time, labels, origin_id,
              first_due_time, timeouts, concurrency_key
), queued AS (
    INSERT INTO queue (job_id, type, priority, due_time, later, expire_time, limit_key, namespace)
    SELECT s.id, s.type, s.priority, s.due_time, s.due_time > m.now,
           least(s.expire_time, total_end(s.first_due_time, s.timeouts)),
           md5(s.namespace || '/' || s.concurrency_key)::uuid, s.namespace
      FROM meta m CROSS JOIN stored s WHERE s.state = 1
), logged AS (
    INSERT INTO event_rows (job_id, version, state, reason, time, due_time)
    SELECT s.id, 1, s.state, CASE WHEN s.origin_id IS NULL THEN 1 ELSE 17 END, m.now,
           CASE s.state WHEN 1 THEN s.due_time END
      FROM meta m CROSS JOIN stored s
     WHERE s.state <> 1 OR s.due_time <> s.first_due_time
), committed AS (
    INSERT INTO commits (size, job_ids, versions)
    SELECT count(*), array_agg(s.id), array_agg(1) FROM stored s HAVING count(*) > 0
), {labelled}

-- fragment: if_not_all
-- The ids of those that were stored, 16 bytes each; NULL if they all were, as they mostly are.
(SELECT CASE WHEN count(*) < cardinality(%(ids)b)
             THEN coalesce(string_agg(uuid_send(s.id), ''), '') END
   FROM stored s)

-- name: put_new_jobs, writes
-- Store jobs that are new; one that is not fails the whole statement.
{put_head}
{put_tail}
SELECT m.epoch, m.now FROM meta m

-- name: put_jobs, writes
-- Store those jobs that are new. Costs more: each row is checked before it is written.
{put_head}
    ON CONFLICT DO NOTHING
{put_tail}
SELECT m.epoch, m.now, s.id, s.due_time
  FROM meta m LEFT JOIN stored s ON true

-- name: put_keyed_jobs, writes
-- The same, but says which those are only if they are not all.
{put_head}
    ON CONFLICT DO NOTHING
{put_tail}
SELECT m.epoch, m.now, {if_not_all} FROM meta m

-- name: find_existing
-- The jobs that stand in the way of new ones: the same id, or the same idempotency key.
SELECT n.place, j.id, j.request_hash, j.state, j.version, j.due_time, j.create_time
  FROM unnest(%(ids)b) WITH ORDINALITY AS n (id, place)
  JOIN jobs j ON j.id = n.id
UNION ALL
SELECT n.place, j.id, j.request_hash, j.state, j.version, j.due_time, j.create_time
  FROM unnest(%(namespaces)b, %(keys)b) WITH ORDINALITY AS n (namespace, idempotency_key, place)
  JOIN jobs j ON j.namespace = n.namespace AND j.idempotency_key = n.idempotency_key

-- fragment: released
-- Remove jobs that left their workers' hands. One probe of the index per job, whatever the statistics say:
-- after a moment of rest they say that the table is empty, and a planner that believes it walks all that is
-- in flight, dead rows too, for each job that ended. Hence the OFFSET, which it may not look through.
released AS (
    DELETE FROM in_flight f
     WHERE f.ctid = ANY (ARRAY(
         SELECT held.place
           FROM ended d
          CROSS JOIN LATERAL (SELECT w.ctid AS place FROM in_flight w
                               WHERE w.worker_id = d.worker_id AND w.job_id = d.id
                              OFFSET 0) AS held))
)

-- fragment: unqueued
-- Remove jobs that left SCHEDULED without a claim from the queue. A row that is locked is left to the
-- claim that holds it: waiting for it here, with the job locked, could wait for ever.
unqueued AS (
    DELETE FROM queue q
     WHERE q.ctid = ANY (ARRAY(
         SELECT left_behind.place
           FROM ended d
          CROSS JOIN LATERAL (SELECT w.ctid AS place FROM queue w
                               WHERE w.type = d.type AND w.priority = d.priority
                                 AND w.due_time = d.due_time AND w.job_id = d.id
                                 FOR UPDATE SKIP LOCKED) AS left_behind
          WHERE d.old_state = 1))
)

-- fragment: untied
-- What the end of jobs lets go: the unique keys they hold, and word for those who wait for them.
-- Jobs without either have NULLs in both columns. One probe per key, as in `released`, for the same reason.
freed AS (
    DELETE FROM unique_keys u
     WHERE u.ctid = ANY (ARRAY(
         SELECT held.place
           FROM ended e
          CROSS JOIN LATERAL (SELECT k.ctid AS place FROM unique_keys k
                               WHERE k.namespace = e.namespace AND k.key = e.unique_key
                                 AND k.job_id = e.id
                              OFFSET 0) AS held
          WHERE e.unique_key IS NOT NULL))
), told AS (
    INSERT INTO ended_parents (job_id) SELECT e.id FROM ended e WHERE e.awaited
    ON CONFLICT DO NOTHING
)

-- fragment: claimed
-- Hand the jobs of these places to a worker: mint the fence, count the attempt. Only those whose row is
-- really gone from the queue: one that was changed since the statement began has a newer row, which is
-- locked but not seen, and is for the next claim. The event has no row: the job's row says it until the
-- attempt starts or ends, and the event of that carries it on (dispatch_time).
taken AS (
    DELETE FROM queue q USING due WHERE q.ctid = due.place
    RETURNING q.job_id
), claimed AS (
    UPDATE jobs j
       SET state = 2, version = j.version + 1, dispatch_no = j.dispatch_no + 1,
           attempt = j.attempt + 1, worker_id = %(worker_id)s::text,
           dispatch_time = clock_timestamp(), start_time = NULL
      FROM (SELECT job_id FROM taken ORDER BY job_id) AS d
     WHERE j.id = d.job_id AND j.state = 1
    RETURNING j.id, j.namespace, j.version, j.dispatch_no, j.attempt, j.priority, j.due_time,
              j.dispatch_time, (j.retry ->> 'attempts')::integer AS attempts,
              j.timeouts, j.traceparent,
              j.input, j.input_type, j.input_ref,
              total_end(j.first_due_time, j.timeouts) AS total_end, j.checkpointed
), held AS (
    INSERT INTO in_flight (worker_id, job_id, dispatch_time)
    SELECT %(worker_id)s::text, c.id, c.dispatch_time FROM claimed c
), committed AS (
    INSERT INTO commits (size, job_ids, versions)
    SELECT count(*), array_agg(c.id), array_agg(c.version)
      FROM claimed c HAVING count(*) > 0
)

-- fragment: waits_due
-- Which jobs of a type are due (or will be, `ahead`). `recent` passes over those that have been due for
-- longer. Nothing is due before the floor.
q.type = %(type)s
       AND q.due_time <= (SELECT c.now + %(ahead)s::interval FROM clock c)
       AND q.due_time >= (SELECT greatest(c.now - %(recent)s::interval, floor_of(f, %(type)s::text))
                            FROM clock c CROSS JOIN floors f)
       AND (q.expire_time IS NULL OR q.expire_time > (SELECT c.now FROM clock c))

-- fragment: handed_out
-- The first of those that are due, as many as there is room for, and what the claim answers.
ORDER BY q.priority DESC, q.due_time, q.job_id
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
), {claimed}
SELECT d.taken, t.now, clock_timestamp(), c.*
  FROM clock t CROSS JOIN (SELECT count(*) AS taken FROM due) AS d LEFT JOIN claimed c ON true

-- name: claim, writes
-- Take such jobs for a worker.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now), due AS (
    SELECT q.ctid AS place, q.job_id
      FROM queue q
     WHERE {waits_due}
     {handed_out}

-- name: claim_below, writes
-- The same, of lower priorities than that: while higher ones are more than can run, these have a share.
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now), due AS (
    SELECT q.ctid AS place, q.job_id
      FROM queue q
     WHERE {waits_due}
       AND q.priority < %(below)s
     {handed_out}

-- name: start, writes
-- Record that handlers began.
WITH started AS (
    UPDATE jobs j
       SET state = 3, version = j.version + 1,
           start_time = greatest(j.dispatch_time,
               clock_timestamp() - coalesce(r.elapsed_ms, 0) * interval '1 millisecond')
      FROM unnest(%(ids)b, %(fences)b, %(workers)b, %(elapsed)b) WITH ORDINALITY
           AS r (id, fence, worker_id, elapsed_ms, place)
     WHERE j.id = r.id AND j.dispatch_no = r.fence AND j.worker_id = r.worker_id AND j.state = 2
    RETURNING r.place, j.id, j.namespace, j.type, j.version, j.attempt, j.dispatch_no, j.worker_id,
              j.start_time, j.dispatch_time
), logged AS (
    INSERT INTO event_rows (job_id, version, state, reason, time, attempt, dispatch_no, worker_id,
                            dispatch_time)
    SELECT s.id, s.version, 3, 3, s.start_time, s.attempt, s.dispatch_no, s.worker_id, s.dispatch_time
      FROM started s
), committed AS (
    INSERT INTO commits (size, job_ids, versions)
    SELECT count(*), array_agg(c.id), array_agg(c.version)
      FROM started c HAVING count(*) > 0
)
SELECT s.place, s.namespace, s.type, s.version, s.attempt, s.start_time FROM started s

-- fragment: succeeded
-- Commit results; a start that was not reported is recorded too. From SCHEDULED it is a late commit:
-- swept or rescued, and not claimed since. Then the attempt that was given back is counted again.
-- The clock is read row by row, after the wait for a row that somebody else was changing: a time taken
-- when the statement began would lie before that change.
WITH ended AS (
    UPDATE jobs j
       SET state = 4, version = j.version + CASE j.state WHEN 2 THEN 2 ELSE 1 END,
           attempt = CASE WHEN j.state > 1 THEN j.attempt ELSE (
               SELECT max(e.attempt)
                 FROM (SELECT w.attempt FROM event_rows w WHERE w.job_id = j.id AND w.dispatch_no = r.fence
                       UNION ALL
                       -- What took it back may have been committed while this waited for the row. Then
                       -- no row says so yet, and the job is seen as it was before: still dispatched.
                       SELECT o.attempt FROM jobs o
                        WHERE o.id = j.id AND o.dispatch_no = r.fence AND o.state = 2) AS e
           ) END,
           start_time = coalesce(j.start_time,
               greatest(j.dispatch_time, clock_timestamp() - r.elapsed_ms * interval '1 millisecond')),
           end_time = clock_timestamp(), failure = NULL,
           output = r.output, output_type = r.output_type, output_ref = r.output_ref::jsonb
      FROM unnest(%(ids)b, %(fences)b, %(workers)b, %(elapsed)b, %(outputs)b, %(output_types)b,
                  %(output_refs)b) WITH ORDINALITY
           AS r (id, fence, worker_id, elapsed_ms, output, output_type, output_ref, place)
     WHERE j.id = r.id AND j.dispatch_no = r.fence AND j.worker_id = r.worker_id AND j.state IN (1, 2, 3)
    RETURNING r.place, j.id, j.namespace, j.type, j.version, old.state AS old_state, j.attempt, j.dispatch_no,
              j.worker_id, j.start_time, j.end_time, j.priority, j.due_time, j.checkpointed,
              j.unique_key, j.awaited, j.dispatch_time
), {released}, {unqueued}, {untied}, logged AS (
    INSERT INTO event_rows (job_id, version, state, reason, time, attempt, dispatch_no, worker_id,
                            dispatch_time, start_time)
    SELECT e.id, e.version, 4, CASE e.old_state WHEN 1 THEN 16 ELSE 4 END, e.end_time, e.attempt,
           e.dispatch_no, e.worker_id,
           CASE e.old_state WHEN 2 THEN e.dispatch_time END, CASE e.old_state WHEN 2 THEN e.start_time END
      FROM ended e
), committed AS (
    INSERT INTO commits (size, job_ids, versions, firsts)
    SELECT count(*) + count(*) FILTER (WHERE c.old_state = 2), array_agg(c.id), array_agg(c.version),
           array_agg(c.version - (c.old_state = 2)::integer)
      FROM ended c HAVING count(*) > 0
)

-- name: succeed, writes
-- Commit results, and say a row for each.
{succeeded}
SELECT e.place, e.namespace, e.type, e.version, e.old_state, e.attempt, e.start_time, e.end_time,
       e.checkpointed, e.awaited
  FROM ended e

-- name: succeed_in_columns, writes
-- Commit results, and say them in columns of bytes, which cost a fraction of a row each to read. All of a
-- group are in one order. `marks` is the old state, 16 more if it was checkpointed, 32 if others wait for it.
{succeeded}
SELECT e.namespace, e.type,
       string_agg(int4send(e.place::integer), ''::bytea) AS places,
       string_agg(int4send(e.version), ''::bytea) AS versions,
       string_agg(int4send(e.attempt), ''::bytea) AS attempts,
       string_agg(timestamptz_send(e.start_time), ''::bytea) AS start_times,
       string_agg(timestamptz_send(e.end_time), ''::bytea) AS end_times,
       string_agg(int2send((e.old_state + CASE WHEN e.checkpointed THEN 16 ELSE 0 END
                            + CASE WHEN e.awaited THEN 32 ELSE 0 END)::smallint), ''::bytea) AS marks
  FROM ended e
 GROUP BY e.namespace, e.type

-- fragment: snoozed
-- Whether a handler of this job (j) has snoozed: it has started in time then, though no attempt is spent.
EXISTS (SELECT FROM event_rows z WHERE z.job_id = j.id AND z.reason = 12 OFFSET 0)

-- name: policies
-- What decides the fate of failed attempts, of those whose fence still holds.
SELECT r.place, j.attempt, j.losses, j.retry, j.timeouts, clock_timestamp() - j.first_due_time
  FROM unnest(%(ids)b, %(fences)b, %(workers)b) WITH ORDINALITY AS r (id, fence, worker_id, place)
  JOIN jobs j ON j.id = r.id AND j.dispatch_no = r.fence AND j.worker_id = r.worker_id
             AND j.state IN (2, 3)

-- name: settle, writes
-- End attempts in any way but success: retry, fail, hand back, sweep, rescue. A handler that ran is
-- recorded as started. Without a delay the due time stays, and with it the place in the line. The clock is
-- read row by row, as in `succeed`.
WITH ended AS (
    UPDATE jobs j
       SET state = r.target, version = j.version + CASE WHEN r.ran AND j.state = 2 THEN 2 ELSE 1 END,
           attempt = j.attempt - r.refund, losses = j.losses + r.loss,
           due_time = coalesce(clock_timestamp() + r.delay_ms * interval '1 millisecond', j.due_time),
           worker_id = CASE WHEN r.keep_worker THEN j.worker_id END,
           start_time = CASE WHEN r.ran AND j.state = 2
               THEN greatest(j.dispatch_time, clock_timestamp() - r.elapsed_ms * interval '1 millisecond')
               ELSE j.start_time END,
           end_time = CASE r.target WHEN 5 THEN clock_timestamp() END,
           failure = coalesce(r.failure::jsonb, j.failure)
      FROM unnest(%(ids)b, %(fences)b, %(workers)b, %(sources)b, %(targets)b, %(reasons)b, %(refunds)b,
                  %(losses)b, %(delays)b, %(keep_workers)b, %(ran)b, %(elapsed)b, %(failures)b, %(notes)b)
           AS r (id, fence, worker_id, source, target, reason, refund,
                 loss, delay_ms, keep_worker, ran, elapsed_ms, failure, note)
     WHERE j.id = r.id AND j.dispatch_no = r.fence AND j.worker_id = coalesce(r.worker_id, j.worker_id)
       AND j.state IN (2, 3) AND j.state <= r.source
    RETURNING j.id, j.namespace, j.type, j.version, old.state AS old_state, j.state, r.reason,
              old.attempt, j.dispatch_no, old.worker_id, j.start_time, j.due_time, r.ran, r.failure,
              r.note, j.priority, j.dispatch_time,
              coalesce(j.end_time, j.due_time - r.delay_ms * interval '1 millisecond', clock_timestamp()) AS now,
              -- A handler that snoozed has started in time.
              least(CASE WHEN j.attempt = 0 AND j.expire_time IS NOT NULL AND r.reason <> 12 AND NOT {snoozed}
                         THEN j.expire_time END,
                    total_end(j.first_due_time, j.timeouts)) AS expire_time,
              j.concurrency_key, CASE j.state WHEN 5 THEN j.unique_key END AS unique_key,
              j.state = 5 AND j.awaited AS awaited
), {released}, {untied}, queued AS (
    INSERT INTO queue (job_id, type, priority, due_time, later, expire_time, limit_key, namespace)
    SELECT e.id, e.type, e.priority, e.due_time, e.due_time > e.now, e.expire_time,
           md5(e.namespace || '/' || e.concurrency_key)::uuid, e.namespace
      FROM ended e WHERE e.state = 1
), lowered AS (
    -- Those that keep an old due time may stand below the floor. That is said even if they do not as far as this
    -- statement sees: who is just raising it does not see them.
    UPDATE floors f SET types = with_older(f.types, b.types, b.times), version = f.version + 1
      FROM (SELECT array_agg(e.type) AS types, array_agg(e.due_time) AS times FROM ended e
             WHERE e.state = 1 AND e.due_time < e.now - interval '1 second'
            HAVING count(*) > 0) AS b
), logged AS (
    INSERT INTO event_rows (job_id, version, state, reason, time, attempt, dispatch_no, worker_id,
                            due_time, failure, note, dispatch_time, start_time)
    SELECT e.id, e.version, e.state, e.reason, e.now, e.attempt, e.dispatch_no, e.worker_id,
           CASE e.state WHEN 1 THEN e.due_time END, e.failure::jsonb, e.note,
           CASE e.old_state WHEN 2 THEN e.dispatch_time END,
           CASE WHEN e.ran AND e.old_state = 2 THEN e.start_time END
      FROM ended e
), marked AS (
    INSERT INTO job_terms (namespace, name, value, job_id)
    SELECT e.namespace, '~unsuccessful', '', e.id FROM ended e WHERE e.state = 5
), committed AS (
    INSERT INTO commits (size, job_ids, versions, firsts)
    SELECT count(*) + count(*) FILTER (WHERE c.ran AND c.old_state = 2), array_agg(c.id),
           array_agg(c.version), array_agg(c.version - (c.ran AND c.old_state = 2)::integer)
      FROM ended c HAVING count(*) > 0
)
SELECT e.id, e.namespace, e.type, e.version, e.old_state, e.state, e.reason, e.attempt, e.dispatch_no,
       e.worker_id, e.start_time, e.due_time, e.ran, e.note, e.now, e.awaited
  FROM ended e

-- name: dispatch_history
-- What was already committed for dispatches whose report found no match, and where the jobs stand.
SELECT r.place, j.state,
       array(SELECT e.reason FROM events_between(r.id, 1, j.version) AS e
              WHERE e.dispatch_no = r.fence AND e.worker_id = r.worker_id)
  FROM unnest(%(ids)b, %(fences)b, %(workers)b) WITH ORDINALITY AS r (id, fence, worker_id, place)
  JOIN jobs j ON j.id = r.id

-- name: cancel, writes
-- End jobs at once, whatever they do; the fence stays, and with the state refuses the worker's result.
-- It needs no fence, so that a transaction with a larger number may commit a claim before it: while it waits
-- for the row, or before the statement begins, if its transaction wrote already (the firing of schedules).
-- A claim has no row that says so; the event of the cancel does.
WITH seen AS MATERIALIZED (
    SELECT r.id, j.version, (SELECT pg_current_xact_id_if_assigned() IS NOT NULL) AS wrote
      FROM unnest(%(ids)b) AS r (id) JOIN jobs j ON j.id = r.id
), ended AS (
    UPDATE jobs j
       SET state = 6, version = j.version + 1, end_time = clock_timestamp()
      FROM seen r
     WHERE j.id = r.id AND j.state IN (1, 2, 3, 8)
       AND j.namespace = coalesce(%(namespace)s::text, j.namespace)
    RETURNING j.id, j.namespace, j.type, j.version, old.state AS old_state, j.attempt, j.dispatch_no,
              j.worker_id, j.end_time, j.priority, j.due_time, j.unique_key, j.awaited,
              j.dispatch_time, CASE WHEN r.wrote OR old.version > r.version THEN true END AS overtook
), {released}, unblocked AS (
    DELETE FROM blocked b USING ended e WHERE b.job_id = e.id AND e.old_state = 8
), {unqueued}, {untied}, logged AS (
    INSERT INTO event_rows (job_id, version, state, reason, time, attempt, dispatch_no, worker_id, note,
                            dispatch_time, overtook)
    SELECT e.id, e.version, 6, 10, e.end_time, e.attempt, e.dispatch_no, e.worker_id, %(note)s::text,
           CASE e.old_state WHEN 2 THEN e.dispatch_time END, e.overtook
      FROM ended e
), marked AS (
    INSERT INTO job_terms (namespace, name, value, job_id)
    SELECT e.namespace, '~unsuccessful', '', e.id FROM ended e
), committed AS (
    INSERT INTO commits (size, job_ids, versions)
    SELECT count(*), array_agg(c.id), array_agg(c.version)
      FROM ended c HAVING count(*) > 0
    -- The firing of schedules makes jobs and cancels others in one transaction.
    ON CONFLICT (xid) DO UPDATE
       SET size = commits.size + excluded.size, job_ids = commits.job_ids || excluded.job_ids,
           versions = commits.versions || excluded.versions
)
SELECT e.id, e.namespace, e.type, e.version, e.old_state, e.attempt, e.dispatch_no, e.worker_id,
       e.end_time, e.awaited
  FROM ended e

-- name: states
-- Where jobs stand.
SELECT j.id, j.state
  FROM unnest(%(ids)b) AS r (id)
  JOIN jobs j ON j.id = r.id AND j.namespace = coalesce(%(namespace)s::text, j.namespace)

-- name: expire_overdue, writes
-- End jobs that spent no attempt before their expire time, and those whose total time is over: if
-- their handler ever started, they have failed.
WITH late AS (
    SELECT q.ctid AS place, q.job_id
      FROM queue q
     WHERE q.expire_time IS NOT NULL AND q.expire_time <= (SELECT clock_timestamp())
     ORDER BY q.expire_time
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED
), taken AS (
    DELETE FROM queue q USING late WHERE q.ctid = late.place
    RETURNING q.job_id  -- as in `claimed`
), ended AS (
    UPDATE jobs j
       SET state = CASE WHEN t.tried THEN 5 ELSE 7 END, version = j.version + 1,
           end_time = clock_timestamp(),
           failure = CASE WHEN t.tried THEN %(failure)s::text::jsonb ELSE j.failure END
      FROM (SELECT l.job_id,
                   (w.attempt > 0 OR w.start_time IS NOT NULL)
                   AND coalesce(total_end(w.first_due_time, w.timeouts) <= clock_timestamp(), false)
              FROM taken l JOIN jobs w ON w.id = l.job_id ORDER BY l.job_id) AS t (job_id, tried)
     WHERE j.id = t.job_id AND j.state = 1
    RETURNING j.id, j.namespace, j.type, j.version, j.attempt, j.dispatch_no, j.worker_id, j.end_time,
              j.state, j.awaited, j.unique_key
), {untied}, logged AS (
    INSERT INTO event_rows (job_id, version, state, reason, time, attempt, dispatch_no, worker_id,
                            failure)
    SELECT e.id, e.version, e.state, 11, e.end_time, e.attempt, e.dispatch_no, e.worker_id,
           CASE e.state WHEN 5 THEN %(failure)s::text::jsonb END
      FROM ended e
), marked AS (
    INSERT INTO job_terms (namespace, name, value, job_id)
    SELECT e.namespace, '~unsuccessful', '', e.id FROM ended e
), committed AS (
    INSERT INTO commits (size, job_ids, versions)
    SELECT count(*), array_agg(c.id), array_agg(c.version)
      FROM ended c HAVING count(*) > 0
)
SELECT * FROM ended

-- fragment: lanes
-- The (type, priority) pairs of the queue, each with its earliest due time: a few index probes per pair,
-- however many jobs wait, and however many have left since the floors were raised. Pairs may come twice: from
-- the floor on, and from before it, where types have older work. None if the look is not to be deep.
-- Nothing else lies below the floors; a look at everything makes sure of that.
WITH RECURSIVE floor AS MATERIALIZED (
    SELECT CASE WHEN %(everything)s THEN '-infinity' ELSE f.due_time END AS due_time,
           CASE WHEN %(everything)s THEN jsonb_build_object() ELSE f.types END AS types
      FROM floors f
), recent_lanes AS (
    (SELECT q.type, q.priority, q.due_time
       FROM queue q WHERE %(deep)s AND q.due_time >= (SELECT f.due_time FROM floor f)
      ORDER BY q.type, q.priority DESC, q.due_time LIMIT 1)
    UNION ALL
    SELECT step.type, step.priority, step.due_time
      FROM recent_lanes l CROSS JOIN LATERAL (
          (SELECT q.type, q.priority, q.due_time
             FROM queue q WHERE q.type = l.type AND q.priority < l.priority
                            AND q.due_time >= (SELECT f.due_time FROM floor f)
            ORDER BY q.priority DESC, q.due_time LIMIT 1)
          UNION ALL
          (SELECT q.type, q.priority, q.due_time
             FROM queue q WHERE q.type > l.type AND q.due_time >= (SELECT f.due_time FROM floor f)
            ORDER BY q.type, q.priority DESC, q.due_time LIMIT 1)
          LIMIT 1
      ) AS step
), older_lanes AS (
    SELECT o.type, o.since, first.priority, first.due_time
      FROM (SELECT e.key, e.value::timestamptz FROM floor f CROSS JOIN LATERAL jsonb_each_text(f.types) AS e
             WHERE %(deep)s) AS o (type, since)
     CROSS JOIN LATERAL (
          SELECT q.priority, q.due_time FROM queue q
           WHERE q.type = o.type AND q.due_time >= o.since AND q.due_time < (SELECT f.due_time FROM floor f)
           ORDER BY q.priority DESC, q.due_time LIMIT 1) AS first
    UNION ALL
    SELECT l.type, l.since, step.priority, step.due_time
      FROM older_lanes l CROSS JOIN LATERAL (
          SELECT q.priority, q.due_time FROM queue q
           WHERE q.type = l.type AND q.priority < l.priority
             AND q.due_time >= l.since AND q.due_time < (SELECT f.due_time FROM floor f)
           ORDER BY q.priority DESC, q.due_time LIMIT 1) AS step
), lanes AS MATERIALIZED (
    SELECT r.type, r.priority, r.due_time FROM recent_lanes r
    UNION ALL
    SELECT o.type, o.priority, o.due_time FROM older_lanes o
)

-- fragment: flying
-- What is in flight, in the order of dispatch: what was dispatched long ago and is noted beside the floor, and
-- all from the floor on. The orders keep the planner from walking it by worker.
SELECT o.worker_id, o.job_id, o.dispatch_time
  FROM (SELECT f.worker_id, f.job_id, f.dispatch_time
          FROM floors d CROSS JOIN LATERAL unnest(d.long_ago) AS l (dispatch_time)
         CROSS JOIN LATERAL (SELECT * FROM in_flight i WHERE i.dispatch_time = l.dispatch_time
                              ORDER BY i.dispatch_time OFFSET 0) AS f
         WHERE l.dispatch_time < d.dispatch_time
         ORDER BY f.dispatch_time) AS o
UNION ALL
SELECT r.worker_id, r.job_id, r.dispatch_time
  FROM (SELECT f.worker_id, f.job_id, f.dispatch_time FROM in_flight f
         WHERE f.dispatch_time >= (SELECT d.dispatch_time FROM floors d)
         ORDER BY f.dispatch_time OFFSET 0) AS r

-- name: backlog
-- Load per type: due jobs (counted up to a cap), the oldest, the next, and what is in flight. The next run of a schedule
-- is no job yet, but comes as surely as one. Of very many schedules only the first are looked at: so they cost little.
{lanes}, clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
waiting AS (
    SELECT l.type, min(l.due_time) AS oldest, min(upcoming.due_time) AS next_due_time
      FROM clock c CROSS JOIN lanes l
      LEFT JOIN LATERAL (
          SELECT q.due_time FROM queue q
           WHERE q.type = l.type AND q.priority = l.priority AND q.due_time > c.now
           ORDER BY q.due_time LIMIT 1
      ) AS upcoming ON true
     GROUP BY l.type
), loads AS (
    SELECT w.type, due.count AS due, w.oldest, w.next_due_time, 0 AS dispatched, 0 AS running
      FROM clock c CROSS JOIN waiting w
      CROSS JOIN LATERAL (
          SELECT count(*) FROM (
              SELECT FROM queue q
               WHERE q.type = w.type AND q.due_time <= c.now
                 AND q.due_time >= (SELECT floor_of(f, w.type) FROM floors f)
               LIMIT %(cap)s
          ) AS counted
      ) AS due
    UNION ALL
    SELECT j.type, 0, NULL, NULL, count(*) FILTER (WHERE j.state = 2), count(*) FILTER (WHERE j.state = 3)
      FROM ({flying}) AS f JOIN jobs j ON j.id = f.job_id
     WHERE j.state IN (2, 3)
     GROUP BY j.type
    UNION ALL
    SELECT s.type, 0, NULL, min(s.next_time), 0, 0
      FROM clock c CROSS JOIN (
          SELECT d.definition -> 'template' ->> 'type' AS type, d.next_time FROM schedules d
           WHERE NOT d.paused AND least(d.next_time, d.check_time) IS NOT NULL
           ORDER BY least(d.next_time, d.check_time) LIMIT 500
      ) AS s
     WHERE s.next_time > c.now
     GROUP BY s.type
)
SELECT l.type, sum(l.due)::bigint,
       greatest(max(c.now) - min(l.oldest), interval '0'),
       sum(l.dispatched)::bigint, sum(l.running)::bigint, min(l.next_due_time)
  FROM clock c CROSS JOIN loads l
 GROUP BY l.type
 ORDER BY l.type

-- name: pulse
-- All that a keeper wants to know regularly, in one statement: the due times of the coming slot, equal
-- ones counted together; the types that have due jobs, and since when; when a schedule, an expiry, a release or a look at
-- parents is next; whether anything is in flight, and whether for too long. All but slot and schedules only if it is to be
-- a deep look: they begin where tables have their dead rows. Then what lies below the floors (types and due
-- times, and the time of a dispatch), and how much may be dead. Last the time when all was found; the first is
-- read before anything is looked for, hence everything in the list instead of joined.
{lanes}, clock AS MATERIALIZED (SELECT clock_timestamp() AS now), flight AS MATERIALIZED (
    -- Below the floor, and not noted beside it, whatever is.
    SELECT (SELECT i.dispatch_time
              FROM floors d CROSS JOIN LATERAL (
                  SELECT f.dispatch_time FROM in_flight f
                   WHERE %(everything)s AND f.dispatch_time < d.dispatch_time
                     AND f.dispatch_time <> ALL (d.long_ago)
                   ORDER BY f.dispatch_time LIMIT 1) AS i) AS unexpected,
           (SELECT f.dispatch_time FROM ({flying}) AS f WHERE %(deep)s LIMIT 1) AS oldest
), unexpected AS MATERIALIZED (
    SELECT array_agg(l.type) AS types, array_agg(l.due_time) AS times
      FROM floors f JOIN lanes l ON l.due_time < floor_of(f, l.type)
)
SELECT c.now, s.types, s.due_times, s.jobs,
       array(SELECT DISTINCT l.type FROM lanes l WHERE l.due_time <= c.now ORDER BY l.type),
       (SELECT least(d.next_time, d.check_time) FROM schedules d
         WHERE NOT d.paused AND least(d.next_time, d.check_time) IS NOT NULL
         ORDER BY least(d.next_time, d.check_time) LIMIT 1),
       CASE WHEN %(deep)s THEN least(
           (SELECT q.expire_time FROM queue q WHERE q.expire_time IS NOT NULL AND q.expire_time <= c.now
             ORDER BY q.expire_time LIMIT 1),
           (SELECT b.expire_time FROM blocked b WHERE b.expire_time IS NOT NULL
             ORDER BY b.expire_time LIMIT 1)) END,
       (SELECT coalesce(w.unexpected, w.oldest) IS NOT NULL FROM flight w),
       (SELECT coalesce(least(w.unexpected, w.oldest) < c.now - %(dispatch)s::interval, false) FROM flight w),
       CASE WHEN %(deep)s THEN (SELECT p.look_time FROM ended_parents p ORDER BY p.look_time LIMIT 1) END,
       CASE WHEN %(deep)s THEN (SELECT b.check_time FROM blocked b ORDER BY b.check_time LIMIT 1) END,
       array(SELECT min(l.due_time) FROM lanes l WHERE l.due_time <= c.now GROUP BY l.type ORDER BY l.type),
       (SELECT u.types FROM unexpected u), (SELECT u.times FROM unexpected u),
       (SELECT w.unexpected FROM flight w),
       pg_stat_get_dead_tuples('queue'::regclass) + pg_stat_get_dead_tuples('in_flight'::regclass),
       clock_timestamp()
  FROM clock c CROSS JOIN LATERAL (
      SELECT array_agg(q.type) AS types, array_agg(q.due_time) AS due_times, array_agg(q.jobs) AS jobs
        FROM (
          SELECT q.type, q.due_time, count(*) AS jobs
            FROM queue q
           WHERE q.later
             AND q.due_time >= coalesce(%(start)s::timestamptz, c.now)
             AND q.due_time < coalesce(%(start)s::timestamptz, c.now) + %(width)s::interval
           GROUP BY q.due_time, q.type
           ORDER BY q.due_time, q.type
           LIMIT %(limit)s
        ) AS q
  ) AS s

-- name: overdue_dispatches
-- Dispatches nobody started for too long; and rows that outlived their dispatch.
SELECT f.job_id, f.worker_id, h.held, j.dispatch_no, j.type
  FROM ({flying}) AS f
  LEFT JOIN jobs j ON j.id = f.job_id
 CROSS JOIN LATERAL (SELECT coalesce(j.worker_id = f.worker_id AND j.state IN (2, 3), false)) AS h (held)
 WHERE f.dispatch_time < (SELECT clock_timestamp() - %(age)s::interval) AND (j.state = 2 OR NOT h.held)
 LIMIT %(limit)s

-- name: inflight_workers
-- The workers that hold jobs.
SELECT DISTINCT f.worker_id FROM ({flying}) AS f ORDER BY f.worker_id

-- name: held_by
-- What the given workers hold, with what decides its fate; and rows that outlived their dispatch.
SELECT f.job_id, f.worker_id,
       coalesce(j.worker_id = f.worker_id AND j.state IN (2, 3), false), j.dispatch_no,
       j.attempt, j.losses, j.retry, j.timeouts, clock_timestamp() - j.first_due_time
  FROM ({flying}) AS f
  LEFT JOIN jobs j ON j.id = f.job_id
 WHERE f.worker_id = ANY (%(workers)b)
 LIMIT %(limit)s

-- name: let_go, writes
-- Remove rows that outlived their dispatch, if that is still so.
DELETE FROM in_flight f
 USING unnest(%(ids)b, %(workers)b) AS r (id, worker_id)
 WHERE f.worker_id = r.worker_id AND f.job_id = r.id
   AND NOT EXISTS (SELECT FROM jobs j
                    WHERE j.id = f.job_id AND j.worker_id = f.worker_id AND j.state IN (2, 3))

-- fragment: job_columns
-- A job as JobRecord has it, but for the bytes of its payloads.
j.id, j.namespace, j.type, j.state, j.version, j.priority, j.attempt, j.losses, j.dispatch_no,
       j.worker_id, j.due_time, j.first_due_time, j.create_time, j.dispatch_time, j.start_time,
       j.end_time, j.expire_time, j.timeouts, j.retry, j.labels, j.failure, j.idempotency_key,
       j.traceparent, j.schedule_id, j.nominal_time, j.origin_id,
       j.input_type, j.input_ref, octet_length(j.input), j.output_type, j.output_ref, octet_length(j.output),
       (SELECT n.name FROM schedule_names n WHERE n.id = j.schedule_id), j.concurrency_key,
       j.unique_key, j.unique_policy, j.dependencies

-- name: get_jobs
-- Jobs by id, without the bytes of their payloads.
SELECT {job_columns}, NULL::bytea, NULL::bytea, p.done, p.total, p.message, p.time
  FROM unnest(%(ids)b) AS r (id) JOIN jobs j ON j.id = r.id
  LEFT JOIN job_progress p ON p.job_id = j.id AND p.dispatch_no = j.dispatch_no

-- name: get_full_jobs
-- Jobs by id.
SELECT {job_columns}, j.input, j.output, p.done, p.total, p.message, p.time
  FROM unnest(%(ids)b) AS r (id) JOIN jobs j ON j.id = r.id
  LEFT JOIN job_progress p ON p.job_id = j.id AND p.dispatch_no = j.dispatch_no

-- name: versions
-- The newest version of jobs.
SELECT j.id, j.version FROM unnest(%(ids)b) AS r (id) JOIN jobs j ON j.id = r.id

-- fragment: event_columns
-- An event as JobEvent has it.
e.job_id, e.version, e.state, e.reason, e.time, e.attempt, e.dispatch_no, e.worker_id, e.due_time,
       e.failure, e.note, j.namespace, j.type, j.labels

-- name: events_after
-- The events of jobs after given versions.
SELECT {event_columns}
  FROM unnest(%(ids)b, %(versions)b) WITH ORDINALITY AS r (id, version, place)
  JOIN jobs j ON j.id = r.id
 CROSS JOIN LATERAL events_between(r.id, r.version + 1, j.version) AS e
 ORDER BY r.place, e.version
 LIMIT %(limit)s

-- name: ends
-- How many of these jobs there are, and the transitions that ended them, of those that have ended: an end
-- always has a row.
WITH found AS MATERIALIZED (
    SELECT j.id, j.version, j.state, j.namespace, j.type, j.labels
      FROM unnest(%(ids)b) AS r (id)
      JOIN jobs j ON j.id = r.id AND j.namespace = coalesce(%(namespace)s::text, j.namespace)
)
SELECT c.count, {event_columns}
  FROM (SELECT count(*) FROM found) AS c
  LEFT JOIN (found j JOIN event_rows e ON e.job_id = j.id AND e.version = j.version)
         ON j.state IN (4, 5, 6, 7)

-- fragment: horizons
-- Up to where the shard's order is complete, its last transaction before that, and whether some are there behind it
-- already. The last one is on disk, since it is seen; the numbers between the two came to nothing, and a crash
-- may have them given out again.
horizon AS MATERIALIZED (
    SELECT s.xid, s.next_xid, m.purged_xid,
           greatest(m.purged_xid,
                    (SELECT c.xid FROM commits c WHERE c.xid < s.xid ORDER BY c.xid DESC LIMIT 1)) AS last_xid,
           EXISTS (SELECT FROM commits c WHERE c.xid >= s.xid) AS overtaken
      FROM (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS xid,
                   pg_snapshot_xmax(pg_current_snapshot()) AS next_xid OFFSET 0) AS s
     CROSS JOIN shard_meta m
)

-- fragment: horizon_columns
-- Transactions as numbers.
h.xid::text::bigint, h.purged_xid::text::bigint, h.next_xid::text::bigint, h.last_xid::text::bigint, h.overtaken

-- name: horizon
-- Where a new reader of the shard's order begins.
WITH {horizons}
SELECT {horizon_columns}
  FROM horizon h

-- name: events_since
-- The shard's events from a transaction on, up to the horizon, in whole transactions; each with its
-- number in its transaction.
WITH {horizons}
SELECT {horizon_columns},
       p.xid::text::bigint, p.size,
       2 * r.place - (r.version - e.version), {event_columns}
  FROM horizon h
  LEFT JOIN LATERAL (
      SELECT * FROM (
          SELECT c.*, sum(c.size) OVER (ORDER BY c.xid) - c.size AS before
            FROM (SELECT * FROM commits
                   WHERE xid >= %(xid)s::text::xid8 AND xid < h.xid
                   ORDER BY xid LIMIT %(limit)s) AS c
      ) AS counted
      WHERE counted.before < %(limit)s
  ) AS p ON true
  LEFT JOIN LATERAL unnest(p.job_ids, p.versions, p.firsts) WITH ORDINALITY
            AS r (id, version, first, place) ON true
  LEFT JOIN LATERAL events_between(r.id, coalesce(r.first, r.version), r.version) AS e ON true
  LEFT JOIN jobs j ON j.id = e.job_id
 ORDER BY p.xid, r.place, e.version

-- name: crossed
-- Those of these jobs of which a version was written by an older transaction than the one before it. A row
-- is at most three versions behind the last one: it carries two. Before the first one nobody can come, and
-- before a claim only a cancel, which says so: all others know of it, so that their transactions are younger.
SELECT DISTINCT n.job_id
  FROM unnest(%(ids)b) AS w (id)
  JOIN event_rows n ON n.job_id = w.id
 WHERE n.overtook
    OR EXISTS (SELECT FROM event_rows e
                WHERE e.job_id = n.job_id AND e.version BETWEEN n.version - 3 AND n.version - 1
                  AND age(n.xmin) > age(e.xmin))

-- name: order_around
-- Where versions of these jobs, a few, stand in a part of the shard's order, behind the horizon, too: of two that
-- stand the wrong way round, the one that was waited for may have a number beyond a transaction that is open.
SELECT c.xid::text::bigint, 2 * r.place - (r.version - v.version), r.id, v.version
  FROM commits c
 CROSS JOIN LATERAL unnest(c.job_ids, c.versions, c.firsts) WITH ORDINALITY
            AS r (id, version, first, place)
  JOIN unnest(%(ids)b) AS w (id) ON w.id = r.id
 CROSS JOIN LATERAL generate_series(coalesce(r.first, r.version), r.version) AS v (version)
 WHERE c.xid >= %(first)s::text::xid8 AND c.xid <= %(last)s::text::xid8

-- fragment: schedule_columns
-- A schedule as ScheduleRecord has it.
s.id, s.namespace, s.name, s.definition, s.input, s.paused, s.pause_note, s.next_time, s.last_time,
       s.last_job_id, s.runs, s.missed, s.version, s.create_time, s.update_time, s.open_jobs, s.waiting

-- name: lock_schedule
-- One schedule, held until the end of the transaction, and the shard's now.
SELECT clock_timestamp(), {schedule_columns}
  FROM (VALUES (1)) AS one LEFT JOIN LATERAL (
      SELECT * FROM schedules WHERE namespace = %(namespace)s AND name = %(name)s FOR UPDATE
  ) AS s ON true

-- name: insert_schedule, writes
-- Store a new schedule, unless its name is taken.
WITH s AS (
    INSERT INTO schedules (
        id, namespace, name, definition, input, paused, pause_note, next_time, create_time, update_time)
    VALUES (%(id)s, %(namespace)s, %(name)s, %(definition)s::text::jsonb, %(input)s, %(paused)s,
            %(pause_note)s, %(next_time)s, clock_timestamp(), clock_timestamp())
    ON CONFLICT DO NOTHING
    RETURNING *
), named AS (
    INSERT INTO schedule_names (id, name) SELECT s.id, s.name FROM s ON CONFLICT DO NOTHING
)
SELECT {schedule_columns} FROM s

-- name: update_schedule, writes
-- Replace what the owner says; what it did so far stays.
UPDATE schedules s
   SET definition = %(definition)s::text::jsonb, input = %(input)s, paused = %(paused)s,
       pause_note = %(pause_note)s, next_time = %(next_time)s, open_jobs = %(open_jobs)s::uuid[],
       check_time = CASE WHEN cardinality(s.waiting) > 0 OR cardinality(%(open_jobs)s::uuid[]) > 0
                         THEN clock_timestamp() END,
       version = s.version + 1, update_time = clock_timestamp()
 WHERE s.namespace = %(namespace)s AND s.name = %(name)s
RETURNING {schedule_columns}

-- name: get_schedule
-- One schedule.
SELECT {schedule_columns} FROM schedules s WHERE s.namespace = %(namespace)s AND s.name = %(name)s

-- name: list_schedules
-- A page of schedules by name, in the order of bytes: that of whoever puts the pages of several shards together.
SELECT {schedule_columns}
  FROM schedules s
 WHERE s.namespace = %(namespace)s AND s.name COLLATE "C" > %(after)s
 ORDER BY s.name COLLATE "C"
 LIMIT %(limit)s

-- name: delete_schedule, writes
-- Forget a schedule; its jobs stay.
DELETE FROM schedules s WHERE s.namespace = %(namespace)s AND s.name = %(name)s RETURNING s.id

-- name: due_schedules
-- The schedules whose time has come, or is about to, held until the end of the transaction.
SELECT clock_timestamp(), {schedule_columns}
  FROM schedules s
 WHERE NOT s.paused
   AND least(s.next_time, s.check_time) <= (SELECT clock_timestamp() + %(ahead)s::interval)
   -- Ahead of their time only those that need not know how their runs stand then.
   AND (least(s.next_time, s.check_time) <= (SELECT clock_timestamp())
        OR coalesce((s.definition ->> 'overlap')::integer, 1) = 1
           AND NOT coalesce((s.definition ->> 'pause_on_failure')::boolean, false))
 ORDER BY least(s.next_time, s.check_time)
 LIMIT %(limit)s
   FOR UPDATE SKIP LOCKED

-- name: followed_runs
-- How the runs stand that schedules follow.
SELECT r.owner, j.id, j.state, j.create_time
  FROM unnest(%(owners)b, %(ids)b) AS r (owner, id) JOIN jobs j ON j.id = r.id

-- name: open_jobs
-- The newest runs of a schedule that have not ended.
SELECT j.id FROM jobs j
 WHERE j.schedule_id = %(schedule)s AND j.state IN (1, 2, 3, 8)
 ORDER BY j.nominal_time DESC
 LIMIT 1000

-- name: made_times
-- Which of these nominal times of a schedule have made a job.
SELECT j.nominal_time
  FROM unnest(%(times)b) AS r (time)
  JOIN jobs j ON j.schedule_id = %(schedule)s AND j.nominal_time = r.time

-- name: advance_schedules, writes
-- Move schedules on: their next nominal times, what they made, the runs they follow.
UPDATE schedules s
   SET next_time = a.next_time, check_time = a.check_time,
       last_time = greatest(s.last_time, a.last_time),
       last_job_id = coalesce(a.last_job_id, s.last_job_id), runs = s.runs + a.runs,
       missed = s.missed + a.missed, open_jobs = a.open_jobs::uuid[],
       waiting = a.waiting::timestamptz[],
       paused = s.paused OR a.pause_note IS NOT NULL,
       pause_note = coalesce(a.pause_note, s.pause_note),
       version = s.version + (a.pause_note IS NOT NULL)::integer
  FROM unnest(%(ids)b, %(next_times)b, %(check_times)b, %(last_times)b, %(last_job_ids)b, %(runs)b,
              %(missed)b, %(open_jobs)b, %(waiting)b, %(pause_notes)b)
       AS a (id, next_time, check_time, last_time, last_job_id, runs, missed, open_jobs, waiting,
             pause_note)
 WHERE s.id = a.id
