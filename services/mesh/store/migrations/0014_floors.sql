-- Where the small tables begin. What has left `queue` and `in_flight` stays in their indexes until a vacuum
-- may remove it, and while somebody holds a transaction open none may: whoever looks for what lives would
-- walk over all that was done since. Every look begins at a floor instead. See docs/adr/0014.

CREATE TABLE floors (
    one             boolean       PRIMARY KEY DEFAULT true CHECK (one),
    due_time        timestamptz   NOT NULL DEFAULT '-infinity',
    dispatch_time   timestamptz   NOT NULL DEFAULT '-infinity',
    mark_time       timestamptz   NOT NULL DEFAULT '-infinity',
    mark_xid        xid8          NOT NULL DEFAULT '0',
    version         bigint        NOT NULL DEFAULT 0,
    types           jsonb         NOT NULL DEFAULT '{}',
    long_ago        timestamptz[] NOT NULL DEFAULT '{}'
) WITH (fillfactor = 10);
INSERT INTO floors DEFAULT VALUES;

COMMENT ON COLUMN floors.due_time IS 'Nothing in queue is due earlier, but for the types in `types`.';
COMMENT ON COLUMN floors.types IS
    'Types that have older work, and the time from which on. Who queues older work adds its type.';
COMMENT ON COLUMN floors.dispatch_time IS
    'Nothing in in_flight was dispatched earlier, but for what was dispatched at the times in `long_ago`.';
COMMENT ON COLUMN floors.mark_time IS 'When the floors were last looked at.';
COMMENT ON COLUMN floors.mark_xid IS 'The transaction that did.';
COMMENT ON COLUMN floors.version IS 'Counts changes: floors are raised only if nobody lowered one meanwhile.';

-- The time from which on jobs of a type are in the queue. Simple enough to be inlined.
CREATE FUNCTION floor_of(f floors, type text) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE AS $$ SELECT least(f.due_time, (f.types ->> type)::timestamptz) $$;

-- The types with older work, and some more.
CREATE FUNCTION with_older(types jsonb, more_types text[], more_times timestamptz[]) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT coalesce(jsonb_object_agg(m.type, m.since), '{}')
      FROM (SELECT o.type, min(o.since) AS since
              FROM (SELECT e.key, e.value::timestamptz FROM jsonb_each_text(types) AS e
                    UNION ALL
                    SELECT n.* FROM unnest(more_types, more_times) AS n) AS o (type, since)
             GROUP BY o.type) AS m
$$;

-- By which in_flight is walked from its floor on. The primary key stays for versions that end jobs by it.
CREATE INDEX in_flight_time ON in_flight (dispatch_time);
