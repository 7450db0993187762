-- The end of ended jobs: what is deleted, and when. Read after `queries.sql`.
--
-- `keep` is a document {type: {state: milliseconds}}; the type "" stands for all that it does not name.
-- A job is deleted only after the order of events has been shortened past its end: a reader that may
-- resume its order finds every event in it. Transactions take their number up to a statement's length
-- before they write their time, hence the ten seconds.

-- fragment: forgotten
-- Of the jobs seen, delete those that were kept for long enough, and what belongs to them.
told AS MATERIALIZED (
    SELECT %(keep)s::text::jsonb AS keep, clock_timestamp() AS now
), horizon AS MATERIALIZED (
    SELECT coalesce((SELECT c.time - interval '10 seconds' FROM commits c
                      WHERE c.xid > %(order)s::text::xid8 ORDER BY c.xid LIMIT 1), 'infinity') AS time
), over AS MATERIALIZED (
    SELECT s.id
      FROM seen s CROSS JOIN told t CROSS JOIN horizon h
     WHERE s.state IN (4, 5, 6, 7) AND s.end_time < h.time
       AND s.end_time < t.now - coalesce(t.keep -> s.type ->> s.state::text, t.keep -> '' ->> s.state::text)
                                ::bigint * interval '1 millisecond'
       -- One that others wait for stays until they were released.
       AND s.awaited IS NOT TRUE AND NOT must_stay(s.id)
), gone AS (
    DELETE FROM jobs j USING over o WHERE j.id = o.id AND j.state IN (4, 5, 6, 7)
    RETURNING j.id, j.namespace, j.labels
), events AS (
    DELETE FROM event_rows e USING gone g WHERE e.job_id = g.id
), progress AS (
    DELETE FROM job_progress p USING gone g WHERE p.job_id = g.id
), checkpoints AS (
    DELETE FROM job_checkpoints c USING gone g WHERE c.job_id = g.id
), terms AS (
    DELETE FROM job_terms t
     USING (SELECT g.namespace, l.key, l.value, g.id
              FROM gone g CROSS JOIN LATERAL jsonb_each_text(g.labels) AS l
             WHERE g.labels IS NOT NULL
            UNION ALL
            SELECT g.namespace, '~unsuccessful', '', g.id FROM gone g) AS g (namespace, name, value, id)
     WHERE t.namespace = g.namespace AND t.name = g.name AND t.value = g.value AND t.job_id = g.id
)
SELECT (SELECT count(*) FROM gone), (SELECT id FROM seen ORDER BY id DESC LIMIT 1),
       (SELECT count(*) FROM seen),
       (SELECT s.id FROM seen s WHERE s.id NOT IN (SELECT o.id FROM over o) ORDER BY s.id LIMIT 1)

-- name: purge_jobs, writes
-- Walk the ids, which are in the order of their making, up to the youngest that may be over.
WITH seen AS MATERIALIZED (
    SELECT j.id, j.type, j.state, j.end_time, j.awaited
      FROM jobs j
     WHERE j.id > %(after)s AND j.id < %(until)s
     ORDER BY j.id
     LIMIT %(limit)s
), {forgotten}

-- name: purge_type, writes
-- The same for one type of one namespace: of a type that is kept for less long than others.
WITH seen AS MATERIALIZED (
    SELECT j.id, j.type, j.state, j.end_time, j.awaited
      FROM jobs j
     WHERE j.namespace = %(namespace)s AND j.type = %(type)s
       AND j.id > %(after)s AND j.id < %(until)s
     ORDER BY j.id
     LIMIT %(limit)s
), {forgotten}

-- name: namespaces
-- The namespaces that have jobs, one index probe each.
WITH RECURSIVE spaces AS (
    (SELECT j.namespace FROM jobs j ORDER BY j.namespace LIMIT 1)
    UNION ALL
    SELECT step.namespace
      FROM spaces s CROSS JOIN LATERAL (
          SELECT j.namespace FROM jobs j WHERE j.namespace > s.namespace ORDER BY j.namespace LIMIT 1
      ) AS step
)
SELECT namespace FROM spaces

-- name: purge_order, writes
-- Shorten the shard's order of events from its old end; how many entries went, and the last of them. `after`
-- is the last that the caller knows to be gone with all before it: nothing appears behind the horizon.
WITH oldest AS MATERIALIZED (
    SELECT c.xid, c.time FROM commits c
     WHERE c.xid > %(after)s::text::xid8 AND c.xid < pg_snapshot_xmin(pg_current_snapshot())
     ORDER BY c.xid LIMIT %(limit)s
), kept AS MATERIALIZED (
    SELECT o.xid FROM oldest o WHERE o.time >= clock_timestamp() - %(age)s::interval ORDER BY o.xid LIMIT 1
), gone AS (
    DELETE FROM commits c USING oldest o
     WHERE c.xid = o.xid AND NOT EXISTS (SELECT FROM kept k WHERE k.xid <= o.xid)
    RETURNING c.xid
), noted AS (
    UPDATE shard_meta m SET purged_xid = g.xid
      FROM (SELECT xid FROM gone ORDER BY xid DESC LIMIT 1) AS g
     WHERE g.xid > m.purged_xid
)
SELECT (SELECT count(*) FROM gone), (SELECT g.xid::text FROM gone g ORDER BY g.xid DESC LIMIT 1)

-- name: purge_names, writes
-- Forget the names of schedules that are deleted and of which no job is left, of so many behind a given one; how many
-- went, how many were looked at, and the last of these.
WITH seen AS MATERIALIZED (
    SELECT k.id FROM schedule_names k WHERE k.id > %(after)s ORDER BY k.id LIMIT %(limit)s
), gone AS (
    DELETE FROM schedule_names n USING seen s
     WHERE n.id = s.id
       AND NOT EXISTS (SELECT FROM schedules c WHERE c.id = n.id)
       AND NOT EXISTS (SELECT FROM jobs j WHERE j.schedule_id = n.id)
    RETURNING n.id
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM seen), (SELECT id FROM seen ORDER BY id DESC LIMIT 1)

-- name: input_references
-- Those of the keys that a job or a schedule refers to. One snapshot: a schedule hands its input on to
-- jobs, and a job to those that repeat it, before they can go.
SELECT r.key
  FROM unnest(%(keys)b) AS r (key)
 WHERE EXISTS (SELECT FROM jobs j WHERE j.input_ref IS NOT NULL AND j.input_ref ->> 'key' = r.key)
UNION ALL
SELECT s.definition -> 'template' -> 'input_ref' ->> 'key'
  FROM schedules s
 WHERE s.definition -> 'template' -> 'input_ref' ->> 'key' = ANY(%(keys)b)

-- name: output_references
-- Where jobs stand whose attempts wrote objects.
SELECT j.id, j.state IN (4, 5, 6, 7), j.dispatch_no, j.output_ref ->> 'key'
  FROM unnest(%(ids)b) AS r (id) JOIN jobs j ON j.id = r.id
