-- Where looks at `queue` and `in_flight` begin (docs/adr/0014). Read after `queries.sql`.

-- name: raise_floors, writes
-- Raise the floors to where nobody can be writing any more: all transactions that began before the last mark
-- have ended. Transactions that put, claim, change or release jobs have their number before they read the clock, and
-- may wait for a row after that. Those that end attempts read it for each row, a moment before they have one: hence the
-- three seconds, longer than that moment. What is older and lives is noted: the types, and when the oldest in flight
-- were dispatched; of these so many, and the floor stays below the others.
-- The mark is this transaction: all that had a number when it began have a smaller one (the end of a snapshot
-- would not do: it is the last that has ended, and one more). A mark that is ahead of all transactions comes with
-- a dump, from a server that had counted further. Floors or a mark in the future come with a clock that was set
-- back: all that is put or claimed from now on would be below them. So no floor stays beyond now, and none goes up to
-- a mark that is, which says nothing of those who read the clock since.
{lanes}, seen AS MATERIALIZED (
    SELECT f.version,
           least(now() - interval '3 seconds', greatest(
               f.due_time, CASE WHEN f.mark_time <= now() THEN f.mark_time - interval '3 seconds' END)) AS due_time,
           least(now(), greatest(
               f.dispatch_time, CASE WHEN f.mark_time <= now() THEN f.mark_time END)) AS dispatch_time,
           pg_snapshot_xmin(pg_current_snapshot()) >= f.mark_xid AS passed
      FROM floors f
     WHERE pg_snapshot_xmin(pg_current_snapshot()) >= f.mark_xid
        OR pg_snapshot_xmax(pg_current_snapshot()) < f.mark_xid
       -- Whoever holds the row is lowering floors. It is not worth a wait: the next look raises them.
       FOR UPDATE SKIP LOCKED
), older AS (
    SELECT l.type, min(l.due_time) AS since
      FROM seen s JOIN lanes l ON l.due_time < s.due_time GROUP BY l.type
), long_ago AS MATERIALIZED (
    SELECT f.dispatch_time FROM ({flying}) AS f
     WHERE f.dispatch_time < (SELECT s.dispatch_time FROM seen s) LIMIT %(most)s + 1
), others AS MATERIALIZED (
    SELECT o.dispatch_time FROM long_ago o OFFSET %(most)s
)
UPDATE floors f
   SET due_time = CASE WHEN s.passed THEN s.due_time ELSE f.due_time END,
       types = CASE WHEN s.passed THEN
           (SELECT coalesce(jsonb_object_agg(o.type, o.since), jsonb_build_object()) FROM older o) ELSE f.types END,
       dispatch_time = CASE WHEN s.passed THEN
           least(s.dispatch_time, (SELECT o.dispatch_time FROM others o)) ELSE f.dispatch_time END,
       long_ago = CASE WHEN s.passed THEN
           array(SELECT DISTINCT o.dispatch_time FROM long_ago o) ELSE f.long_ago END,
       mark_time = now(), mark_xid = pg_current_xact_id(), version = f.version + 1
  FROM seen s
 WHERE f.version = s.version

-- name: lower_floors, writes
-- There is work that has been due for long, or that was dispatched earlier than was thought. It may be that the
-- clock was set back: then the next to be put and claimed would be below the floors, too.
UPDATE floors f
   SET types = with_older(f.types, %(types)b, %(times)b),
       due_time = least(f.due_time, now() - interval '3 seconds'),
       dispatch_time = least(f.dispatch_time, %(dispatch_time)s::timestamptz, now()), version = f.version + 1
