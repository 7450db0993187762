-- What running handlers say: progress, checkpoints. Neither is a transition.

-- name: note_progress, writes
-- Note how far attempts are, of those whose fence holds. Older news never replaces newer news.
WITH mine AS MATERIALIZED (
    SELECT r.place, j.id, j.namespace, j.type, j.attempt, j.state, j.dispatch_no,
           r.done, r.total, r.message, r.time
      FROM unnest(%(ids)b, %(fences)b, %(workers)b, %(done)b, %(totals)b, %(messages)b, %(times)b)
           WITH ORDINALITY AS r (id, fence, worker_id, done, total, message, time, place)
      JOIN jobs j ON j.id = r.id AND j.dispatch_no = r.fence AND j.worker_id = r.worker_id
                 AND j.state IN (2, 3)
     ORDER BY j.id
), noted AS (
    INSERT INTO job_progress AS p (job_id, time, done, total, dispatch_no, message)
    SELECT m.id, m.time, m.done, m.total, m.dispatch_no, m.message FROM mine m
    ON CONFLICT (job_id) DO UPDATE
       SET time = excluded.time, done = excluded.done, total = excluded.total,
           dispatch_no = excluded.dispatch_no, message = excluded.message
     WHERE (p.dispatch_no, p.time) < (excluded.dispatch_no, excluded.time)
)
SELECT m.place, m.state, m.namespace, m.type, m.attempt FROM mine m

-- name: store_checkpoints, writes
-- Store where attempts stand, of those whose fence holds; without data, forget it. The job's row is
-- locked by the update, so that no claim comes between: a superseded attempt can store nothing.
WITH mine AS (
    UPDATE jobs j SET checkpointed = r.data IS NOT NULL
      FROM unnest(%(ids)b, %(fences)b, %(workers)b, %(data)b, %(content_types)b) WITH ORDINALITY
           AS r (id, fence, worker_id, data, content_type, place)
     WHERE j.id = r.id AND j.dispatch_no = r.fence AND j.worker_id = r.worker_id AND j.state IN (2, 3)
    RETURNING r.place, j.id, j.state, j.dispatch_no, r.data, r.content_type
), stored AS (
    INSERT INTO job_checkpoints (job_id, dispatch_no, content_type, data)
    SELECT m.id, m.dispatch_no, coalesce(m.content_type, ''), m.data FROM mine m
     WHERE m.data IS NOT NULL
    ON CONFLICT (job_id) DO UPDATE
       SET dispatch_no = excluded.dispatch_no, content_type = excluded.content_type,
           data = excluded.data
), removed AS (
    DELETE FROM job_checkpoints c USING mine m WHERE m.data IS NULL AND c.job_id = m.id
)
SELECT m.place, m.state FROM mine m

-- name: checkpoints
-- What earlier attempts of jobs stored.
SELECT c.job_id, c.content_type, c.data
  FROM unnest(%(ids)b) AS r (id) JOIN job_checkpoints c ON c.job_id = r.id

-- name: forget_checkpoints, writes
-- Nobody goes on from these any more.
DELETE FROM job_checkpoints c USING unnest(%(ids)b) AS r (id) WHERE c.job_id = r.id
