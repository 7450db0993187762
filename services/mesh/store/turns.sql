-- Claims that begin with the namespaces of a type in turn (docs/adr/0015). Read after `queries.sql`.

-- fragment: of_namespace
-- The jobs of one namespace (w) that are due, in order. That it is asked for as a range, and sorted by, looks odd and
-- nails the plan: where one namespace has nearly all jobs, an equality looks worthless to the planner, which
-- would then walk the line past all of them.
q.type = %(type)s AND q.namespace >= w.namespace AND q.namespace <= w.namespace
           AND q.priority >= %(least)s
           AND q.due_time <= (SELECT s.until FROM span s) AND q.due_time >= (SELECT s.since FROM span s)
           AND (q.expire_time IS NULL OR q.expire_time > (SELECT s.now FROM span s))
         ORDER BY q.namespace, q.priority DESC, q.due_time

-- fragment: next_namespace
-- The first namespace of the type after another (w), but for the one that is passed over: not one of its rows is
-- touched, dead or alive. It may have nothing that is due.
(SELECT q.namespace FROM queue q
          WHERE q.type = %(type)s AND q.namespace > w.namespace AND q.namespace < %(besides)s
            AND q.due_time >= (SELECT s.since FROM span s)
          ORDER BY q.namespace LIMIT 1)
        UNION ALL
        (SELECT q.namespace FROM queue q
          WHERE q.type = %(type)s AND q.namespace > greatest(w.namespace, %(besides)s)
            AND q.due_time >= (SELECT s.since FROM span s)
          ORDER BY q.namespace LIMIT 1)
        LIMIT 1

-- name: claim_in_turn, writes
-- Take due jobs of a type from its namespaces in turn, on from a given one: from each that waits its first ones, an
-- equal part. So many `namespaces` are served and so many `steps` made at most: a claim is a bounded number of probes.
-- Says how many namespaces were found to wait, and the one where the walk stopped, unless it came to the end.
WITH RECURSIVE clock AS MATERIALIZED (SELECT clock_timestamp() AS now), span AS MATERIALIZED (
    SELECT c.now, c.now + %(ahead)s::interval AS until, floor_of(f, %(type)s::text) AS since
      FROM clock c CROSS JOIN floors f
), walk AS (
    SELECT %(after)s::text COLLATE "C" AS namespace, 0 AS number, 0 AS before, false AS waits
    UNION ALL
    SELECT step.namespace, l.number + 1, l.before + l.waits::integer,
           EXISTS (SELECT FROM (SELECT step.namespace) AS w CROSS JOIN LATERAL (
               SELECT FROM queue q WHERE {of_namespace} LIMIT 1) AS first)
      FROM walk l CROSS JOIN LATERAL (
               SELECT n.namespace FROM (SELECT l.namespace) AS w CROSS JOIN LATERAL (
                   {next_namespace}) AS n) AS step
     WHERE l.number < %(steps)s AND l.before + l.waits::integer < %(namespaces)s
), parts AS MATERIALIZED (
    SELECT count(*) AS found, %(limit)s / greatest(1, count(*)) AS part FROM walk l WHERE l.waits
), due AS (
    SELECT first.place, first.job_id
      FROM walk w CROSS JOIN LATERAL (
          SELECT q.ctid AS place, q.job_id FROM queue q WHERE {of_namespace}
           LIMIT (SELECT p.part FROM parts p)
             FOR UPDATE SKIP LOCKED) AS first
     WHERE w.waits
), {claimed}
SELECT d.taken, t.now, clock_timestamp(), p.found,
       (SELECT l.namespace FROM walk l
         WHERE l.number >= %(steps)s OR l.before + l.waits::integer >= %(namespaces)s), c.*
  FROM clock t CROSS JOIN parts p CROSS JOIN (SELECT count(*) AS taken FROM due) AS d LEFT JOIN claimed c ON true
