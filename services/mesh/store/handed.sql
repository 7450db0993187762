-- New jobs that are handed to a worker by the statement that stores them (docs/adr/0016): due at once, and of a type
-- of which nothing waits. They are never in the queue.

-- fragment: handed_head
-- New jobs from their columns, claimed as `claim` would right after: fence and attempt are the first.
WITH meta AS MATERIALIZED ({numbered}), stored AS (
    INSERT INTO jobs (state, version, dispatch_no, attempt, worker_id, dispatch_time, {put_columns})
    SELECT 2, 2, 1, 1, %(worker_id)s::text, m.now, {put_values}
      FROM meta m
     CROSS JOIN unnest({put_arrays}) AS n ({put_names})
     {put_times}
     WHERE m.epoch <= %(epoch)s

-- fragment: handed_tail
-- What the worker holds, their labels, and the two transitions of each. Neither has a row: the job's says both
-- (see events_between).
    RETURNING id, namespace, labels, due_time, dispatch_time
), held AS (
    INSERT INTO in_flight (worker_id, job_id, dispatch_time)
    SELECT %(worker_id)s::text, s.id, s.dispatch_time FROM stored s
), committed AS (
    INSERT INTO commits (size, job_ids, versions, firsts)
    SELECT 2 * count(*), array_agg(s.id), array_agg(2), array_agg(1) FROM stored s HAVING count(*) > 0
), {labelled}

-- name: put_new_handed, writes
-- Store and hand out jobs that are new; one that is not fails the whole statement.
{handed_head}
{handed_tail}
SELECT m.epoch, m.now FROM meta m

-- name: put_handed, writes
-- Store and hand out those jobs that are new.
{handed_head}
    ON CONFLICT DO NOTHING
{handed_tail}
SELECT m.epoch, m.now, s.id, s.due_time
  FROM meta m LEFT JOIN stored s ON true

-- name: put_keyed_handed, writes
-- The same, but says which those are only if they are not all.
{handed_head}
    ON CONFLICT DO NOTHING
{handed_tail}
SELECT m.epoch, m.now, {if_not_all} FROM meta m
