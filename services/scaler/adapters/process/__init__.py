"""The process driver: workers as processes on the Scaler's own machine.

Starting. A worker is a process of its own session, its output in a log file of its own. It belongs
to the pool, not to the Scaler: the Scaler's end leaves it running, and whichever Scaler acts next
on this machine adopts it. Next to the log stands a record with pid and start time, so that a pid
the kernel gave to somebody else is never mistaken for it. By the records the successor knows even
those workers that have not registered yet.

    started ──▶ registered ──▶ settled        settled: it has lived for `settle_seconds`
       │             │
       │ exit,       │ exit before it settled, without being told to go
       │ timeout     │
       └──────▶  crashed                       holds back further starts, see domain.crashes

Letting go. A worker is asked by RPC to drain: it takes no more work, finishes what it has, or hands
it back when its drain timeout is over, and ends. Nobody kills a busy worker. One that is still
there a grace after its timeout gets SIGTERM, which asks for the same once more; and only if it is
certain that the process is that worker: our own child, one with a record, or one on this machine
whose start time fits its registration. There is no SIGKILL.

Giving up. A process that has not registered in time gets SIGTERM and, a grace later, SIGKILL: it
has no work that this could cut short. Until it is gone it counts as starting, so that no more of
them hang than the pool should have workers. All this goes on if the pool is deleted meanwhile; one
that is made anew for the type finds it counted.
"""
