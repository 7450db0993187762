"""The truth: one Postgres database per shard, behind `ShardStore`.

**One statement per decision.** Every transition is a single statement that updates the row under
its guard (state and fence) and inserts the event, so there is no transaction to hold open and
nothing to repair half way. Statements carry arrays: 500 jobs cost little more than one. The one
exception is the firing of schedules, whose nominal times are computed here, between two statements
of one transaction.

**The shard's clock decides.** No statement takes a time from a service to decide what is due, late
or expired. Reads that a scheduler plans with return the shard's now beside the rows.

**Commit, then publish.** Each writing method returns the events it committed. A caller may publish
them as hints; nothing depends on the hint's arrival.

**Certain or unknown.** `ShardUnavailable` is raised only when it is certain that nothing was
committed. When the connection broke or the deadline passed after a writing statement was sent, the
outcome is unknown and the error says so (`OutcomeUnknown`); see `connection`.

**Fewer rows than events.** A plain job has four events and one event row: what the job's row says
needs none, and an end carries the claim and the start before it. `events_between` tells the whole
history, and is what statements read. Whatever leaves DISPATCHED passes the claim on. See
`docs/adr/0011`.

**Order of events.** Per job by `version`, without gaps. Over all jobs of a shard by transaction,
and within one by its list of events (`commits`). Transactions take their numbers before they commit
and become visible out of order, so a reader only goes up to the oldest one still running (the
horizon). Below the horizon nothing can appear any more, hence a resumed reader misses nothing and
repeats nothing. Versions of a job that stand the wrong way round are exchanged; see `order`.

**Tables.** `jobs` is the truth; no index holds what a transition changes, so updates are heap-only.
What must be found by state is in `queue` and `in_flight`, written by the same statements; they may
name a job too many, never one too few, and the row decides. See `docs/adr/0004`. Looks begin at
floors, past what is dead and cannot be vacuumed; see `floors`.

**Ties.** What waits for others, and keys that one live job may hold, stand in tables of their own
(`blocked`, `waits`, `ended_parents`, `unique_keys`), written by the statements that make and end
jobs; see `releasing` and `tying`. Jobs without ties touch none of them.

**Plans are nailed.** Sessions force generic plans and forbid the scans that a planner with stale
statistics might fall back to; see `settings`. All statements stand in the `.sql` files, the schema
in `migrations/` (expand, then contract; see `migrations`).

Ports: `port.ShardStore` is what services depend on; `postgres.PostgresShard` implements it.
"""
