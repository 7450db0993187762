"""An hour of moderate load: does anything grow that should not?

    run         one soak from nothing to a verdict: mesh, load, probes, held transaction, judgement
    load        a steady mix of what clients do: batches, single calls, retries, run-at, watches
    handlers    the job types it uses
    probes      what is looked at every few seconds: processes, tables, claims, etcd
    judge       slopes, plateaus and ratios of those samples, and the verdict
    picture     the samples as one SVG

Ended jobs are kept for minutes only, so that tables can reach their plateau within the run: what a
week does with a retention of a day is the same in small. From a third of the run on a transaction
is held open on every shard for ten minutes, as a forgotten session or a backup would: what was
deleted since cannot be vacuumed then, and a claim that walked over it would slow down.

Slopes are fitted by least squares to the second half of the run, when caches are full; a run of
less than half an hour shows warming up rather than leaks. Figures that the machine's other work
moves (milliseconds) stand beside one that it does not: the blocks that a claim touches.
"""
