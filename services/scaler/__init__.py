"""The Scaler: keeps each type's pool of workers at the size its work needs; at rest that is zero.

One pool per job type. The Scaler follows the backlog (the Orchestrator's Stats stream) and the
workers' registrations (etcd), decides how many workers each pool should have, and has a driver
start them or let them go.

    Stats ──▶ load follower ─┐                        ┌─▶ driver.grow     start processes
    etcd  ──▶ pools mirror ──┤   nudge                │
    etcd  ──▶ workers mirror ┼────────▶ reconciler ───┼─▶ scale-in ─▶ driver.shrink    drain
    exits ──▶ process driver ┘          decide(...)   │
                                                      └─▶ board ─▶ RPCs;  etcd: status, decisions

* **The law is a pure function** (`domain.law`): spec, load, counts, time and the decision before
  go in; the desired count, the reason in words and the next moment worth another look come out.
* **News are acted on at once.** The reconciler sleeps until something happens: statistics, a
  registration, a pool, an exit, a moment the law asked for. A slow tick repairs what was missed.
  It compares states and never counts steps, so a repeated or lost piece of news does no harm.
* **One acts.** Several Scalers may run; the one that holds the leader key under a living lease
  acts, the others answer the same RPCs from what it writes to etcd, on changes only. A leader stops
  believing in its lease before anyone else can get the key. If two act for a moment all the same,
  the worst is a worker too many, which is idle and goes first.
* **Registrations are the truth about workers.** A Scaler that takes over counts whoever is
  registered, goes on from the last decision, and adopts what its predecessor was starting.
* **Not knowing is not zero.** Old or incomplete statistics never shrink a pool; a Scaler without
  etcd does nothing at all.
* **Scale-in is surgical.** Idle workers go first, then those with least in hand; each is asked by
  RPC to drain. Workers that somebody started by hand count, but are never told to go.
* **Crash loops are held back and explained**: the pause between tries doubles, the first try after
  a pause is one worker alone, and the decision quotes the dead worker's last words.

Start: connect etcd, follow pools, workers and statuses; open the Stats stream; stand for election;
serve. Ready means: the lease is held and statistics come.

Drain: streams end, the reconciler stops, the leader key and the lease are given back, so that
another Scaler takes over at once. The workers stay: they belong to their pools, not to the Scaler.
"""
