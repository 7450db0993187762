-- What running handlers say, and when a job's total time is over.

-- The last progress of each job that reported some. Beside the job, since it is written once a second
-- for as long as a handler runs: an update here moves a few bytes, and no job that is silent pays.
CREATE TABLE job_progress (
    job_id          uuid             NOT NULL,
    time            timestamptz      NOT NULL,
    done            double precision NOT NULL,
    total           double precision NOT NULL,
    dispatch_no     integer          NOT NULL,
    message         text             NOT NULL,
    CONSTRAINT job_progress_pkey PRIMARY KEY (job_id)
) WITH (fillfactor = 50);

COMMENT ON COLUMN job_progress.time IS 'When it was said, by the worker''s clock.';

-- What an attempt stored for the next one to go on from.
CREATE TABLE job_checkpoints (
    job_id          uuid        NOT NULL,
    dispatch_no     integer     NOT NULL,
    content_type    text        NOT NULL,
    data            bytea       NOT NULL,
    CONSTRAINT job_checkpoints_pkey PRIMARY KEY (job_id)
);

ALTER TABLE jobs ADD COLUMN checkpointed boolean;
COMMENT ON COLUMN jobs.checkpointed IS 'Has a row in job_checkpoints: claims look there only then.';

-- When the total time of a job is over; NULL if that is not bounded. Simple enough to be inlined.
CREATE FUNCTION total_end(first_due_time timestamptz, timeouts jsonb) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT first_due_time + (timeouts ->> 'total')::bigint * interval '1 millisecond'
$$;

COMMENT ON COLUMN queue.expire_time IS
    'When it ends if it still waits: its expire time until an attempt was spent, its total time always.';
UPDATE queue q SET expire_time = least(q.expire_time, total_end(j.first_due_time, j.timeouts))
  FROM jobs j
 WHERE j.id = q.job_id AND j.timeouts ->> 'total' IS NOT NULL;
