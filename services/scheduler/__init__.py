"""The Scheduler: hands due jobs to workers with room, each in time, and takes back what got lost.

                      nudges (all hear them)          grabs (one gets each)
                               │                               │
    shard ──slot──▶ timers ──▶ due flags ──────▶ Claimer ◀──── credit book
      ▲    ──overdue─────────▶     ▲                │ claim, commit, then publish
      │                            │                ▼
      └── sweep, rescue, expire, release, fire      DispatchBatch to the worker, hint to watchers

**Credit.** A worker's grab offers room for one type. It is parked until there is due work, and is
answered once: with jobs, or empty when it has waited for long. Nothing is ever claimed without
credit, so backlog stays in Postgres and a worker is never sent more than it asked for.

**Loans.** A grab of a type that nothing waits for is lent to the Orchestrator that stored the last
such jobs: it hands the next ones out as it stores them. As soon as there is word of work and no
credit for it, what was lent is recalled (`app.lending`, docs/adr/0016).

**Due flags.** For each (type, shard) one bit: there may be due work. Nudges, timers, sweeps,
rescues, schedules and ticks raise it; only a claim that came back with less than it asked for
lowers it, unless the flag was raised again meanwhile. Backlog is counted nowhere.

**A claim** is one statement on one shard for one worker, and one message: batches stay whole from
hop to hop. One claim per (type, shard) is under way at a time, shards and workers take turns. The
first claim after a rest goes at once; claims that bring little keep a distance that grows with
their own duration, so that batches form exactly when they are needed (`domain.pace`).

**A backlog** is handed out highest priority first, then longest due first. While a type is behind
by more than ten seconds, every fourth claim of it is for jobs that became due lately, so that a
backlog of hours leaves live work of its type a share (`domain.shares`); other types have turns of
their own. While one namespace has more of a type than can run, claims begin with the others in turn
(`domain.turns`).

**A shard at rest** costs its keeper one statement every two seconds (`pulse`): it reads the coming
slot, and tells which types are due and whether there is anything to fire, expire, sweep or compare;
what there is not is not looked for. All else goes by alarms and nudges, which say when.

**Limits.** Of a type with a limit a claim takes at most what is left, and passes over jobs whose
key is full. What is left is known by following the places that workers hold in etcd, plus what was
sent and has not arrived there. Schedulers take turns at such types, a moment apart. All of that
saves sending jobs around; the workers are strict (`domain.places`).

**Several schedulers** run side by side, none of them special. Every nudge reaches all of them, a
grab reaches one, and any of them may claim from any shard: `SKIP LOCKED` and the row's conditions
make every claim safe. Only the duties that nobody needs to do twice (slots, schedules, sweep,
rescue, expiry) are divided, shard by shard, by rendezvous hashing over the members in etcd. The
division saves work and guards nothing: while views differ a shard may have two keepers.

**What only one of them knows** is told to the others: a scheduler that finds due work by itself and
has no credit for it publishes a nudge, once per finding. What came by nudge is never passed on.

**What was served** is told as well, by the names of the nudges: a claim that saw the end of the
work it was nudged for says so to the others, whose flags go down. Else the one that had no credit
would ask for that work as soon as the worker's next grab came to it. In a stream of nudges the word
is only, four times a second, that somebody serves the lane. One that is lost or late costs a claim
in vain, or a look; whoever claims at the same time, or was told by more than a nudge, keeps its
flag (`domain.flags`).

**Room that is out of reach.** A grab is parked with one scheduler; killed, frozen or cut off, that
one takes the workers' room with it, and nobody can see that. What everybody can see is work that
stays due. So whoever has word of work and no credit looks at the shard half a second later, unless
somebody said to serve it, and if it is still there, calls the workers of the type: those whose grab
has been out for long send a new one, straight to the caller (`app.calling`). Who keeps the shard
does not matter, so a dead keeper's shards are served as well; only its timers wait for its lease.
Considered and left: pinging whoever has the grab costs every idle worker messages for ever;
grabbing from two schedulers promises the same room twice; a shorter patience repeats every idle
grab. A call costs nothing while there is no work, and little while all workers are busy.

**Time.** The shard's clock decides what is due. Jobs for later are claimed and sent a moment ahead
of their time to workers that wait for it: the batch says what the shard's clock shows, by an
estimate that is never ahead of it (`domain.times`), so the worker never starts early (ADR 0008).
Slots overlap and are half open. Whatever slips through (a lost nudge, a clock set back) is overdue
at the next look.

**What is lost is found.** DISPATCHED for too long without a lock in etcd: the dispatch got lost,
and is swept; while any is near that age the sweep goes round every second. No attempt ran, so age
may decide here. Its worker's key in etcd is gone: the job is rescued, by watch at once and by
comparison every few seconds. Both only under the row's fence, so whoever comes too late changes
nothing. Looks at all that waits are rare where they are slow, as they are while somebody holds a
transaction open (`domain.looks`, `domain.depth`).

**Those who wait are released.** A job that ends while others wait for it is written down by the
statement that ends it. The keeper of its shard, told by a message and by its looks at the shard,
releases those who wait, in every shard, and forgets the end when all have answered
(`app.releasing`).

**What is away stops nobody else.** A shard that fails to answer is left alone until a probe, which
holds nobody's credit, is answered. Without the broker nothing is claimed. Without etcd due jobs are
still handed out (claims need only Postgres and NATS, and a worker that cannot lock does not grab);
sweeps and rescues wait, since without locks and leases nobody can tell lost from slow; the division
of shards stays as it was. Not ready in either case, but alive.

Nothing here is kept on disk: a scheduler that dies loses parked grabs and timers. Its workers grab
anew when called, its shards' keepers read the slots again.
"""
