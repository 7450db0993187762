-- Claims of types with a limit per key. Read after `queries.sql`, whose fragments it uses.
-- `held` is a document {limit key: attempts in flight}, as far as the caller knows; the workers make sure.

-- fragment: fitting
-- Of the jobs seen, those whose keys have room, in order; each locked unless somebody else was quicker.
fitting AS (
    SELECT s.job_id, s.priority, s.due_time, s.limit_key,
           row_number() OVER (PARTITION BY s.limit_key ORDER BY s.priority DESC, s.due_time, s.job_id)
               + coalesce((h.held ->> s.limit_key::text)::integer, 0) AS place
      FROM seen s CROSS JOIN told h
), picked AS (
    SELECT f.job_id, f.priority, f.due_time
      FROM fitting f
     WHERE f.limit_key IS NULL OR f.place <= %(per_key)s
     ORDER BY f.priority DESC, f.due_time, f.job_id
     LIMIT %(limit)s
), due AS (
    SELECT q.ctid AS place, q.job_id, q.limit_key
      FROM picked p
      JOIN queue q ON q.type = %(type)s AND q.priority = p.priority AND q.due_time = p.due_time
                  AND q.job_id = p.job_id
       FOR UPDATE OF q SKIP LOCKED
)

-- fragment: keyed_answer
-- How many were taken, seen and picked, where the walk stopped; then the jobs, each with its limit key.
SELECT d.taken, d.now, d.seen, d.picked, d.last_key, k.*
  FROM (SELECT (SELECT now FROM told) AS now,
               (SELECT count(*) FROM due) AS taken, (SELECT count(*) FROM seen) AS seen,
               (SELECT count(*) FROM picked) AS picked, (SELECT last_key FROM walked) AS last_key) AS d
  LEFT JOIN (SELECT c.*, u.limit_key FROM claimed c JOIN due u ON u.job_id = c.id) AS k ON true

-- name: claim_keyed, writes
-- Take due jobs of a type whose keys have room, from among the first in the line.
WITH told AS MATERIALIZED (
    SELECT %(held)s::text::jsonb AS held, clock_timestamp() AS now
), walked AS (SELECT NULL::uuid AS last_key), seen AS MATERIALIZED (
    SELECT q.job_id, q.priority, q.due_time, q.limit_key
      FROM queue q
     WHERE q.type = %(type)s AND q.due_time <= (SELECT clock_timestamp())
       AND q.due_time >= (SELECT floor_of(f, %(type)s::text) FROM floors f)
       AND (q.expire_time IS NULL OR q.expire_time > (SELECT clock_timestamp()))
     ORDER BY q.priority DESC, q.due_time, q.job_id
     LIMIT %(window)s
), {fitting}, {claimed}
{keyed_answer}

-- name: claim_keyed_behind, writes
-- The same when those whose keys are full fill the front of the line: from key to key, the first ones
-- of each, for a bounded number of keys after a given one; and of those without a key the first few.
WITH RECURSIVE told AS MATERIALIZED (
    SELECT %(held)s::text::jsonb AS held, clock_timestamp() AS now
), keys AS (
    (SELECT q.limit_key, 1 AS number
       FROM queue q
      WHERE q.type = %(type)s AND q.limit_key > %(after)s
        AND q.due_time >= (SELECT floor_of(f, %(type)s::text) FROM floors f)
      ORDER BY q.limit_key LIMIT 1)
    UNION ALL
    SELECT step.limit_key, k.number + 1
      FROM keys k CROSS JOIN LATERAL (
          SELECT q.limit_key
            FROM queue q
           WHERE q.type = %(type)s AND q.limit_key > k.limit_key
             AND q.due_time >= (SELECT floor_of(f, %(type)s::text) FROM floors f)
           ORDER BY q.limit_key LIMIT 1
      ) AS step
     WHERE k.number < %(window)s
), walked AS (
    SELECT k.limit_key AS last_key FROM keys k WHERE k.number = %(window)s
), seen AS MATERIALIZED (
    SELECT f.job_id, f.priority, f.due_time, f.limit_key
      FROM told t CROSS JOIN keys k CROSS JOIN LATERAL (
          SELECT q.job_id, q.priority, q.due_time, q.limit_key
            FROM queue q
           WHERE q.type = %(type)s AND q.limit_key = k.limit_key AND q.due_time <= t.now
             AND q.due_time >= (SELECT floor_of(f, %(type)s::text) FROM floors f)
             AND (q.expire_time IS NULL OR q.expire_time > t.now)
           ORDER BY q.priority DESC, q.due_time, q.job_id
           LIMIT greatest(0, %(per_key)s - coalesce((t.held ->> k.limit_key::text)::integer, 0))
      ) AS f
    UNION ALL
    SELECT n.job_id, n.priority, n.due_time, n.limit_key
      FROM (SELECT q.job_id, q.priority, q.due_time, q.limit_key, q.expire_time
              FROM queue q
             WHERE q.type = %(type)s AND q.due_time <= (SELECT now FROM told)
               AND q.due_time >= (SELECT floor_of(f, %(type)s::text) FROM floors f)
             ORDER BY q.priority DESC, q.due_time, q.job_id
             LIMIT 20000) AS n CROSS JOIN told t
     WHERE n.limit_key IS NULL AND (n.expire_time IS NULL OR n.expire_time > t.now)
), {fitting}, {claimed}
{keyed_answer}
