-- What ties jobs to each other: dependencies, and keys that only one live job may hold.
--
-- Jobs without ties have NULLs here, which take no room in their rows; the tables beside `jobs` hold
-- only jobs with ties, so that the others pay for none of it.

ALTER TABLE jobs
    ADD COLUMN blockers     smallint,
    ADD COLUMN awaited      boolean,
    ADD COLUMN unique_key   text,
    ADD COLUMN dependencies jsonb;

COMMENT ON COLUMN jobs.blockers IS 'How many jobs it still waits for: as many as it has rows in waits.';
COMMENT ON COLUMN jobs.awaited IS
    'Others wait for its end. Not a transition; such a job must not be deleted.';

-- One row per live job with a unique key: written with the job, deleted by the statement that ends it.
-- A row may outlive its job's life (never the other way round); whoever meets such a row removes it.
CREATE TABLE unique_keys (
    job_id          uuid        NOT NULL,
    namespace       text        NOT NULL,
    key             text        NOT NULL,
    CONSTRAINT unique_keys_pkey PRIMARY KEY (namespace, key)
);

-- One row per BLOCKED job.
CREATE TABLE blocked (
    job_id          uuid        NOT NULL,
    check_time      timestamptz NOT NULL,
    expire_time     timestamptz,
    CONSTRAINT blocked_pkey PRIMARY KEY (job_id)
);
COMMENT ON COLUMN blocked.check_time IS 'When to look at its parents, in case word of their end was lost.';
CREATE INDEX blocked_check ON blocked (check_time);
CREATE INDEX blocked_expiry ON blocked (expire_time) WHERE expire_time IS NOT NULL;

-- One row per parent that a job still waits for, in the shard of the job that waits. Rows of a job that
-- is no longer BLOCKED mean nothing, and go when their parent ends.
CREATE TABLE waits (
    parent_id       uuid        NOT NULL,
    child_id        uuid        NOT NULL,
    policy          smallint    NOT NULL,
    CONSTRAINT waits_pkey PRIMARY KEY (parent_id, child_id)
);
CREATE INDEX waits_child ON waits (child_id);

-- Awaited jobs that have ended, in their own shard, written by the statement that ended them and kept
-- until every shard has released those who waited: no crash in between can lose it.
CREATE TABLE ended_parents (
    job_id          uuid        NOT NULL,
    look_time       timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT ended_parents_pkey PRIMARY KEY (job_id)
);
CREATE INDEX ended_parents_look ON ended_parents (look_time);
