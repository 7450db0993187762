"""The Worker: asks for attempts, locks them, runs their handlers, reports.

    grab ─▶ received ─▶ locked ─▶ input read ─▶ running ─▶ output stored ─▶ reported ─▶ settled
      ▲         │          │           │           │   │          │             ▲
      │         └──────────┴───────────┴───────────┴───│──────────┴─ or ────────┘
      │            handed back: costs the job nothing  │
      └──────────── room again: the handler has ended ─┘

It has no database login. What it may do to a job is decided by the row, through the fence that
every report carries; everything below only makes it rare that the row has to say no.

Parts (`app`)
    Grabber     one per type. Keeps one grab outstanding, for the room there is or will be soon.
    Tenure      one identity at work: its inbox, locks, reports. Locks a batch in one transaction.
    Turns       what was asked for ahead of room waits here, locked, for a second at most.
    Runner      an attempt from its input to its ending; stopping it is cancelling its task.
    Crew        those tasks: one for each attempt that waits; what never waits shares one.
    Reporter    one stream to any Orchestrator; tells everything again until it has a verdict.
    Node        one tenure after the other, and the drain at the end.

Credit
    Room is capacity minus what is in hand, and none at all while the lease is not to be trusted,
    the worker drains, or too many attempts wait for their verdict. Under load room comes in
    crumbs; a worker asks when a quarter of its capacity is free, or after two milliseconds. One
    that runs few at once asks for what will have ended in a moment, too, if the last ones were
    quick (`domain.foresight`).
    Schedulers park a grab for long, so one that is lost must be noticed otherwise: when the
    broker's connection was renewed, or a scheduler's key vanished from etcd, all grabs are sent
    again; and when a scheduler calls for room while a grab has been out for half a second, that
    scheduler gets a new one, and those after it for a few seconds. An answer to a grab that was
    given up is no harm: it runs if there is room, else it is handed back.

At most one start per dispatch
    Messages repeat. What is in hand, and the fences of the last 16,384 attempts at least, are
    remembered; a dispatch seen before is ignored. A *newer* dispatch of a job that still runs here
    means that the mesh gave our attempt up: it is stopped, and the newer one handed back for a
    second, as two attempts of one job would share a lock.

At its time
    Jobs for later come a moment ahead (ADR 0008). They are locked and their input is read; the
    handler starts when the rest has passed, by the monotonic clock. Stopping works as ever.

Where handlers run
    `async def` in the worker's own loop. Plain functions in executor processes (`executor`), one
    attempt at a time in each: they can block, crash, eat memory and be killed with all they
    started, and the heartbeat goes on. Commands as processes of their own, one per attempt.
    Executors in other languages attach over gRPC (`app.attached`): what they can take is lent to
    the book, their types are announced and grabbed for while they are there, and what they had in
    hand when they go is a loss, as if a worker had died with it.

What handlers say
    Progress, heartbeats, extensions, checkpoints and log lines reach the attempt's Run through the
    executor port, from whatever runs the handler. Progress is coalesced to one report a second;
    a checkpoint is acknowledged by its verdict; the log is a ring of a MiB, heard by any number of
    listeners who each hold a number only, and put into the object store before the ending is
    told. An attempt that says nothing and has no bound costs none of this.

Who holds the lock, and for how long
    Until the verdict for attempts that ran: a job whose report is delayed is still DISPATCHED in
    its row, and only the lock keeps the sweep from giving it to another worker. A handed back one
    is unlocked while it is reported: it runs nowhere, and the next worker should not find it
    locked.

Limits
    A dispatch may name limits. The attempt then takes a place of each, after its lock and before
    its handler, or is handed back; it gives them back when its handler has ended, not waiting for
    the verdict.

When the lease is lost
    In doubt (no renewal in time, but nobody said it is gone): take nothing, start nothing; what
    runs goes on. etcd may be away for everyone, and then nobody can see us die either.
    Lost (etcd does not know the lease any more): the registration and all locks are gone, and
    jobs in hand are being rescued. Nothing is stopped blindly, for three reasons. The row accepts
    the result of an attempt whose fence is still the newest, so work may not be lost after all.
    Two runs at once are what the fence is for. And an attempt that was followed up is told so, by
    a STALE verdict or by the newer dispatch. The identity, however, is over: it takes nothing
    more, and after its attempts have ended, or a short grace, a new one begins, with a new lease
    and a new worker id. The grace is there because a new identity would at once be sent the very
    jobs that still run here. An identity with attempts left reports them under its own id, beside
    the next.

What is whose fault
    The handler's: exceptions, exits, timeouts. They fail the attempt. The job's: an input that is
    gone or corrupt fails it for good. Nobody's: a store, a lock or the lease is away, the worker
    drains; the attempt is handed back and costs nothing. A cancel hint only stops the attempt: it
    is handed back as well, and the row, which knows better, answers STALE if it was cancelled.

The drain
    Not serving; no more grabs; attempts finish until the deadline; the rest is killed and handed
    back; all reports have their verdicts; locks are given back; the lease is revoked; late
    dispatches are handed back for a moment longer; exit 0.
"""
