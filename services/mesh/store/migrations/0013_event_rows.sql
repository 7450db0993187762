-- Fewer rows than events. A row of `event_rows` is an event, and may carry the ones before it that say
-- nothing of their own; what the job's row says needs no event row. `job_events` is the whole history.
--
-- An older neighbour reads and writes `job_events` as before: it is a view now, and its triggers store
-- what is written there. See docs/adr/0011.

ALTER TABLE job_events RENAME TO event_rows;
ALTER TABLE event_rows RENAME CONSTRAINT job_events_pkey TO event_rows_pkey;
ALTER TABLE event_rows
    ADD COLUMN dispatch_time timestamptz,
    ADD COLUMN start_time    timestamptz,
    ADD COLUMN overtook      boolean;

COMMENT ON COLUMN event_rows.start_time IS
    'If set, the version before is the start of the same attempt, at this time.';
COMMENT ON COLUMN event_rows.dispatch_time IS
    'If set, the version before (before the start, if there is one) is the claim of the attempt.';
COMMENT ON COLUMN event_rows.overtook IS
    'Its transaction has a smaller number than the one that wrote a version before it, or may have.';

-- The events of a job with versions in a range. The one place that knows which events have rows:
-- * created: none, while the job's row still says when it was first due;
-- * claimed: none while the job is DISPATCHED; then whatever ends or starts the attempt carries it;
-- * started: carried by the end, if both were written at once.
-- What has a row of its own besides (older versions wrote one each) is told once.
-- Simple enough to be inlined: each part is a probe of an index. The OFFSETs keep the planner from making a
-- join of them, which would read all rows of a job.
CREATE FUNCTION events_between(job uuid, first integer, last integer)
RETURNS TABLE (
    job_id uuid, "time" timestamptz, due_time timestamptz, version integer, dispatch_no integer,
    attempt integer, state smallint, reason smallint, worker_id text, note text, failure jsonb,
    writer xid)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT e.job_id, v.time, v.due_time, v.version, e.dispatch_no, e.attempt, v.state, v.reason,
           e.worker_id, v.note, v.failure, e.xmin
      FROM event_rows e
     CROSS JOIN LATERAL (
         SELECT e.version, e.state, e.reason, e.time, e.due_time, e.note, e.failure
         UNION ALL
         SELECT e.version - 1, 3::smallint, 3::smallint, e.start_time, NULL, NULL, NULL
          WHERE e.start_time IS NOT NULL
         UNION ALL
         SELECT e.version - CASE WHEN e.start_time IS NULL THEN 1 ELSE 2 END, 2::smallint, 2::smallint,
                e.dispatch_time, NULL, NULL, NULL
          WHERE e.dispatch_time IS NOT NULL
     ) AS v
     WHERE e.job_id = job AND e.version >= first AND e.version <= last::bigint + 2
       AND v.version >= first AND v.version <= last
       AND (v.version = e.version OR NOT EXISTS (
            SELECT FROM event_rows o WHERE o.job_id = e.job_id AND o.version = v.version OFFSET 0))
    UNION ALL
    SELECT j.id, v.time, v.due_time, v.version, v.dispatch_no, v.attempt, v.state, v.reason, v.worker_id,
           NULL, NULL, NULL
      FROM jobs j
     CROSS JOIN LATERAL (
         SELECT 1 AS version, 1::smallint AS state,
                CASE WHEN j.origin_id IS NULL THEN 1 ELSE 17 END::smallint AS reason,
                j.create_time AS time, j.first_due_time AS due_time, 0 AS dispatch_no, 0 AS attempt,
                NULL::text AS worker_id
         UNION ALL
         SELECT j.version, 2::smallint, 2::smallint, j.dispatch_time, NULL, j.dispatch_no, j.attempt,
                j.worker_id
          WHERE j.state = 2
     ) AS v
     WHERE j.id = job AND v.version >= first AND v.version <= last
       AND NOT EXISTS (
            SELECT FROM event_rows o WHERE o.job_id = j.id AND o.version = v.version OFFSET 0)
$$;

CREATE VIEW job_events AS
SELECT j.id AS job_id, e.time, e.due_time, e.version, e.dispatch_no, e.attempt, e.state, e.reason, e.worker_id,
       e.note, e.failure, e.writer AS xmin
  FROM jobs j CROSS JOIN LATERAL events_between(j.id, 1, 2147483647) AS e;

-- What an older neighbour writes. If the version before has no row, that is a claim of a newer one, so that
-- this event carries it; if it is a cancel, which needs no fence, it may have overtaken the claim.
CREATE FUNCTION store_event() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    claimed timestamptz;
BEGIN
    IF NEW.version > 2 AND NOT EXISTS (SELECT FROM event_rows o
                                        WHERE o.job_id = NEW.job_id AND o.version = NEW.version - 1) THEN
        SELECT j.dispatch_time INTO claimed FROM jobs j WHERE j.id = NEW.job_id;
    END IF;
    INSERT INTO event_rows (job_id, time, due_time, version, dispatch_no, attempt, state, reason,
                            worker_id, note, failure, dispatch_time, overtook)
    VALUES (NEW.job_id, NEW.time, NEW.due_time, NEW.version, coalesce(NEW.dispatch_no, 0),
            coalesce(NEW.attempt, 0), NEW.state, NEW.reason, NEW.worker_id, NEW.note, NEW.failure,
            claimed, CASE WHEN claimed IS NOT NULL AND NEW.reason = 10 THEN true END);
    RETURN NEW;
END
$$;
CREATE TRIGGER job_events_insert INSTEAD OF INSERT ON job_events
    FOR EACH ROW EXECUTE FUNCTION store_event();

CREATE FUNCTION forget_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM event_rows e WHERE e.job_id = OLD.job_id AND e.version = OLD.version;
    RETURN OLD;
END
$$;
CREATE TRIGGER job_events_delete INSTEAD OF DELETE ON job_events
    FOR EACH ROW EXECUTE FUNCTION forget_event();
