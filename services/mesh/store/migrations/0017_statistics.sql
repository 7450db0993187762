-- What the server samples of these tables, and how often.
--
-- By default it sorts 30,000 rows by each of their columns, inputs and documents too, whenever a tenth of the table
-- has changed. Jobs come, change and go, so that was every time it looked: an eighth of a busy shard's time, and after each
-- sample every prepared statement is planned anew. Plans here rest on keys alone. So: a rough idea of what is
-- searched by, nothing of the rest, and that when half of the table has changed.

-- A table's columns that are searched by get ten buckets, all others none.
CREATE FUNCTION sample_only(target regclass, searched text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    found name;
BEGIN
    FOR found IN SELECT attname FROM pg_attribute WHERE attrelid = target AND attnum > 0 AND NOT attisdropped
    LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET STATISTICS %s',
                       target, found, CASE WHEN found = ANY (searched) THEN 10 ELSE 0 END);
    END LOOP;
END
$$;

SELECT sample_only('jobs', '{id,namespace,type,state,idempotency_key,unique_key,schedule_id,nominal_time}');
SELECT sample_only('event_rows', '{job_id,version}');
SELECT sample_only('commits', '{xid,time}');
SELECT sample_only('job_terms', '{namespace,name,value,job_id}');
-- The key of an input's object, by which orphans are told.
ALTER INDEX jobs_input ALTER COLUMN 1 SET STATISTICS 10;

ALTER TABLE jobs SET (autovacuum_analyze_scale_factor = 0.5, autovacuum_analyze_threshold = 5000);
ALTER TABLE event_rows SET (autovacuum_analyze_scale_factor = 0.5, autovacuum_analyze_threshold = 5000);
ALTER TABLE commits SET (autovacuum_analyze_scale_factor = 0.5, autovacuum_analyze_threshold = 5000);
ALTER TABLE job_terms SET (autovacuum_analyze_scale_factor = 0.5, autovacuum_analyze_threshold = 5000);
ALTER TABLE queue SET (autovacuum_analyze_scale_factor = 0.5, autovacuum_analyze_threshold = 5000);
ALTER TABLE in_flight SET (autovacuum_analyze_scale_factor = 0.5, autovacuum_analyze_threshold = 5000);

DROP FUNCTION sample_only(regclass, text[]);
