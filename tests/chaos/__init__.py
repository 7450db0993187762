"""Breaking a whole mesh on purpose, and proving afterwards that it kept its promises.

    run         one run from nothing to a verdict: mesh, crew, load, nemesis, settle, dump, check
    load        clients that submit, cancel, read and watch; all they saw is a history (JSONL)
                (orders: what is asked for;  clients: what each does;  calls: one line per call)
    apps/       the handlers they call; each leaves lines in the effect ledger
    ledger      what handlers did, outside the mesh: raw, and as a fenced resource sees it
    links       fault proxies on every link of the mesh;  broker: a tap that reads NATS frames
    nemesis     a seeded plan of faults, done one by one and logged;  faults: what each one does
    apart       the other plan: one fault at a time, by which recovery targets are judged
    dump        rows, events and schedules of all shards, objects, locks: what was true at the end
    checker     dump + history + ledger + watches + fault log -> violations; rules of its own
    recovery    how long things took to work again, per kind of fault;  samples: where that is seen
    report      result.json, timeline.html, a timeline per violated job, the one line at the end

The parts only share files in the folder of a run, so each can be used alone: a test that breaks one
thing at one place runs a `Load`, calls `settle` and `dump`, and asks `check` for violations. A run
that was interrupted can be checked again with `python -m tests.chaos.checker FOLDER`.

Everything happens on one machine, so wall clocks of different processes may be compared.
"""
