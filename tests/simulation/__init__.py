"""The mesh in one process, on a clock that is only counted: a seed decides everything.

    loop        an event loop without selector and without time: it jumps from event to event, runs
                what is ready in an order that the seed draws, and knows which process each callback
                belongs to. A killed process is one whose callbacks never run again; a frozen one's
                wait. Nothing is cancelled, no `finally` runs: as with SIGKILL and SIGSTOP
    shard       a model of the job database, statement by statement; it has to pass the suite of
                random histories that Postgres passes
    network     what lies between: calls that are slow, fail before or after they took effect, and
                messages that are lost, repeated or overtaken; leases on the loop's clock
    processes   the services' own code on those ports: Orchestrator (placing, reports, cancels,
                probes, topology), Scheduler (all of it), Worker (all but executors and objects)
    world       one seed: processes, clients, a nemesis; a phase of faults, then one of healing
    judge       what must hold of the history, the ledger and the rows

Real here: every loop, rule and retry of the three services above, and the messages between them.
Modelled: Postgres, NATS, etcd, gRPC. Not here: Enqueue's watches, the Scaler, schedules, objects.
"""
