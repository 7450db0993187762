"""The Orchestrator: owner of the shards.

It stands between the stateless services and the job databases. What it does:

* **Routes.** A job's bucket (1 of 4096, written into its id) says which shard holds it. The map
  from buckets to shards stands in etcd with an epoch; every Orchestrator follows it by watch, and
  a shard refuses writers with an older epoch. New jobs without a key go, a whole batch at a time,
  to one healthy shard: batches that stay whole are what makes the path fast. A keyed job's bucket
  is a pure function of its key, so it has exactly one home and is never redirected.
* **Watches the shards' health.** Each shard is probed on a connection of its own, at once when a
  statement of it is slow. A miss counts only if nothing else was answered meanwhile. Three misses
  in a row open its breaker (AWAY): calls for its jobs fail at once with SHARD_UNAVAILABLE, new jobs
  go elsewhere, and nothing else changes. Two answers close it again. Work on different shards
  never waits for each other: every shard has its own connections, queue and task.
* **Never makes a twin.** A batch is redirected only after an error that proves that nothing was
  committed. When the outcome is unknown, the same rows (same ids) are offered to the same shard
  once more, which is harmless; if that does not settle it the caller is told OUTCOME_UNKNOWN.
* **Hands out what nobody waits for.** While nothing of a type waits, schedulers lend it workers'
  grabs; new jobs are then stored as DISPATCHED and sent to the worker at once (`app.loans`). A put
  that finds its room used up waits a moment for more, if that is likely to come (`app.room`).
* **Commits reports.** Workers stream what happened to their attempts. Reports of all workers are
  coalesced per shard: what came in while the last statement ran goes into the next one. The row
  decides by its fence; the answer is COMMITTED, STALE, or RETRY while the shard is away.
* **Tells.** After each commit, and never before, it publishes the transitions as hints and nudges
  the schedulers about work that is due within seconds. Both may be lost: the sweep and the
  watches' re-reads make up for it.
* **Counts.** Backlog and load per type, read only while somebody listens, at once when something
  changed (here, or elsewhere by the schedulers' nudges) and when the next job or run of a schedule
  becomes due, else every few seconds.

Start: connect etcd, load (or create) the map; connect NATS; open every shard, migrate it on its
first answer; serve. Ready means: map known, NATS connected, at least one shard healthy. A process
whose shards are all away is alive but not ready.

Drain: report streams are told to go elsewhere, queued reports are committed, then everything
closes.
"""
