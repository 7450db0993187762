-- What schedules remember of their runs, and names that outlive schedules.

ALTER TABLE schedules
    ADD COLUMN check_time timestamptz,
    ADD COLUMN open_jobs  uuid[]        NOT NULL DEFAULT '{}',
    ADD COLUMN waiting    timestamptz[] NOT NULL DEFAULT '{}';

COMMENT ON COLUMN schedules.check_time IS 'When to look at its runs, if that is before its next time.';
COMMENT ON COLUMN schedules.open_jobs IS 'Jobs it made that had not ended when it last looked.';
COMMENT ON COLUMN schedules.waiting IS 'Nominal times whose turn comes when the run before has ended.';

-- What the firing of schedules walks.
CREATE INDEX schedules_look ON schedules (least(next_time, check_time)) WHERE NOT paused;
DROP INDEX schedules_due;

-- A job knows its schedule by id; the name stays known when the schedule is deleted.
CREATE TABLE schedule_names (
    id      uuid    NOT NULL,
    name    text    NOT NULL,
    CONSTRAINT schedule_names_pkey PRIMARY KEY (id)
);
INSERT INTO schedule_names (id, name) SELECT id, name FROM schedules;
