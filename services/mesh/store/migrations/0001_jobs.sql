-- Jobs, their events, the queue, and what a shard knows about itself.
--
-- Numbers in `state` and `reason` are those of services.mesh.jobs.states (and of the wire).
-- Columns are ordered by alignment: fixed width first, what varies last.

CREATE TABLE shard_meta (
    one             boolean     PRIMARY KEY DEFAULT true CHECK (one),
    shard           text        NOT NULL,
    incarnation     uuid        NOT NULL DEFAULT gen_random_uuid(),
    epoch           bigint      NOT NULL DEFAULT 0,
    purged_xid      xid8        NOT NULL DEFAULT '0'
);

-- The truth. No index holds a column that a transition changes: then an update is "heap only" (HOT),
-- touches no index, leaves no index entry behind and needs no vacuum. What changes and must be found
-- is in two small tables beside it, `queue` and `in_flight`, written by the same statements.
-- The fill factor leaves each page room for the next versions of its rows.
CREATE TABLE jobs (
    id              uuid        NOT NULL,
    due_time        timestamptz NOT NULL,
    first_due_time  timestamptz NOT NULL,
    create_time     timestamptz NOT NULL,
    dispatch_time   timestamptz,
    start_time      timestamptz,
    end_time        timestamptz,
    expire_time     timestamptz,
    nominal_time    timestamptz,
    version         integer     NOT NULL,
    dispatch_no     integer     NOT NULL DEFAULT 0,
    attempt         integer     NOT NULL DEFAULT 0,
    losses          integer     NOT NULL DEFAULT 0,
    state           smallint    NOT NULL,
    priority        smallint    NOT NULL DEFAULT 0,
    schedule_id     uuid,
    origin_id       uuid,
    namespace       text        NOT NULL,
    type            text        NOT NULL,
    worker_id       text,
    idempotency_key text,
    request_hash    bytea,
    traceparent     text,
    retry           jsonb,
    timeouts        jsonb,
    labels          jsonb,
    failure         jsonb,
    input           bytea,
    input_type      text,
    input_ref       jsonb,
    output          bytea,
    output_type     text,
    output_ref      jsonb,
    CONSTRAINT jobs_pkey PRIMARY KEY (id)
) WITH (fillfactor = 40);

COMMENT ON COLUMN jobs.dispatch_no IS 'The fence: only the newest dispatch may change the job.';
COMMENT ON COLUMN jobs.attempt IS
    'Attempts spent: counted by the claim, given back when the job is not to blame.';

CREATE UNIQUE INDEX jobs_idempotency ON jobs (namespace, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE UNIQUE INDEX jobs_nominal ON jobs (schedule_id, nominal_time)
    WHERE schedule_id IS NOT NULL;
-- Lists, newest first.
CREATE INDEX jobs_list ON jobs (namespace, id);
CREATE INDEX jobs_list_type ON jobs (namespace, type, id);

-- One row per SCHEDULED job. A row may outlive that state (a cancel that found it locked leaves it),
-- never the other way round; a claim that meets such a row removes it.
CREATE TABLE queue (
    job_id          uuid        NOT NULL,
    due_time        timestamptz NOT NULL,
    expire_time     timestamptz,
    priority        smallint    NOT NULL,
    later           boolean     NOT NULL,
    type            text        NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);

COMMENT ON COLUMN queue.later IS 'Was not due yet when it was written: what slots look ahead for.';
COMMENT ON COLUMN queue.expire_time IS 'When it expires; none once an attempt was spent.';

-- What a claim walks: one type, highest priority first, longest due first. Future rows are in it
-- too; the scan leaves a priority at its first row that is not due (a skip scan, Postgres 18).
CREATE UNIQUE INDEX queue_claim ON queue (type, priority DESC, due_time, job_id);
-- What a slot reads ahead. Jobs that were due when written never enter it.
CREATE INDEX queue_slot ON queue (due_time, type) WHERE later;
-- What may expire. Jobs without an expire time never enter it.
CREATE INDEX queue_expiry ON queue (expire_time) WHERE expire_time IS NOT NULL;

-- One row per DISPATCHED or RUNNING job: as small as the mesh's capacity. Here too a row may outlive
-- the state (a cancel during a claim); readers look at the job, and a rescue removes it.
CREATE TABLE in_flight (
    job_id          uuid        NOT NULL,
    dispatch_time   timestamptz NOT NULL,
    worker_id       text        NOT NULL,
    CONSTRAINT in_flight_pkey PRIMARY KEY (worker_id, job_id)
) WITH (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);

-- Append only. Attempts are a fold over these; they have no table.
CREATE TABLE job_events (
    job_id          uuid        NOT NULL,
    time            timestamptz NOT NULL,
    due_time        timestamptz,
    version         integer     NOT NULL,
    dispatch_no     integer     NOT NULL DEFAULT 0,
    attempt         integer     NOT NULL DEFAULT 0,
    state           smallint    NOT NULL,
    reason          smallint    NOT NULL,
    worker_id       text,
    note            text,
    failure         jsonb,
    CONSTRAINT job_events_pkey PRIMARY KEY (job_id, version)
);

-- The shard's order of events: one row per transaction that wrote some, naming them. An index over
-- the events would cost an entry per event; this costs next to nothing for a batch.
-- `versions` are the last ones per job; `firsts`, if set, the first ones (a start with its end).
CREATE TABLE commits (
    xid             xid8        NOT NULL DEFAULT pg_current_xact_id(),
    time            timestamptz NOT NULL DEFAULT clock_timestamp(),
    size            integer     NOT NULL,
    job_ids         uuid[]      NOT NULL,
    versions        integer[]   NOT NULL,
    firsts          integer[],
    CONSTRAINT commits_pkey PRIMARY KEY (xid)
);
-- Ids do not compress; do not try.
ALTER TABLE commits ALTER COLUMN job_ids SET STORAGE EXTERNAL;
ALTER TABLE commits ALTER COLUMN versions SET STORAGE EXTERNAL;
ALTER TABLE commits ALTER COLUMN firsts SET STORAGE EXTERNAL;

-- What lists find jobs by besides namespace and type, written once each: the labels, and the mark of
-- those that ended without success (under a name that no label can have).
CREATE TABLE job_terms (
    namespace       text        NOT NULL,
    name            text        NOT NULL,
    value           text        NOT NULL,
    job_id          uuid        NOT NULL,
    CONSTRAINT job_terms_pkey PRIMARY KEY (namespace, name, value, job_id)
);

-- The map epoch in force, read under a lock that raise_epoch takes exclusively. Volatile, so that it
-- reads with a snapshot taken after the lock was granted, not with that of the calling statement.
CREATE FUNCTION epoch_in_force() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(7026250113);
    RETURN (SELECT epoch FROM shard_meta);
END
$$;
