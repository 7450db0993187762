"""The mesh on one machine: real servers from wheels, the services as processes, no docker, no root.

    servers/     Postgres, NATS, etcd and an S3 store as they come from PyPI
    service      one service of the mesh as a process, ready when its gRPC health says so
    settings     what a mesh consists of; plan: the units that follow from it, and their addresses
    mesh         up, down, clean;  status: one row per process;  logs: reading along
    harness      a mesh for the length of a test (reaper: even if that is killed)
    providers    single servers for tests, from the environment, docker or the wheels
    unit, launch, stopping, processes, ports, state, progress, wheels, errors    what these stand on

A *unit* is one process: a server or a service. `up` starts the missing servers in parallel, waits
until each does real work, then the services likewise, and leaves; nothing stays behind to watch
them. What it started stands in `state.json` with pid and start time, so a reused pid is never
mistaken for ours, and every process carries the folder of its mesh in its environment, so that
even without that file all are found. `up` again keeps what is ready and mends the rest; it heals
stale locks, a killed postmaster, a rebooted machine. `down` drains in order: Scaler, workers,
schedulers, enqueue, Orchestrator, servers.

    home/data/<server>   home/logs/<unit>.log   home/workers/<worker>.json   home/state.json   lock

Workers are the Scaler's: its process driver starts them with its own environment, and each writes
`<worker_id>.json` with `{"pid", "start_time", "type", "address"}` into JOBMESH_LOCAL_WORKERS_DIR
when it starts and removes it when it ends. `start_time` is field 22 of /proc/self/stat. At its
address `down` says how long its jobs may still run: by itself it would wait for as long as its pool
allows, be killed meanwhile, and its jobs be lost instead of handed back.

Problems a user can mend are a `LocalError` with one line that names the cause and the way out.
Linux only: processes are watched through /proc and pidfds.
"""
