-- Schedules. What the owner says is one document, so that new kinds of recurrence need no new column;
-- what the firing of schedules looks for or changes has columns of its own.

CREATE TABLE schedules (
    id              uuid        NOT NULL,
    next_time       timestamptz,
    last_time       timestamptz,
    create_time     timestamptz NOT NULL,
    update_time     timestamptz NOT NULL,
    last_job_id     uuid,
    runs            bigint      NOT NULL DEFAULT 0,
    missed          bigint      NOT NULL DEFAULT 0,
    version         integer     NOT NULL DEFAULT 1,
    paused          boolean     NOT NULL DEFAULT false,
    namespace       text        NOT NULL,
    name            text        NOT NULL,
    pause_note      text        NOT NULL DEFAULT '',
    definition      jsonb       NOT NULL,
    input           bytea,
    CONSTRAINT schedules_pkey PRIMARY KEY (id),
    CONSTRAINT schedules_name UNIQUE (namespace, name)
);

CREATE INDEX schedules_due ON schedules (next_time) WHERE NOT paused AND next_time IS NOT NULL;
