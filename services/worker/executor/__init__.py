"""The executor process: runs plain handlers, one attempt at a time, for the worker that started it.

It is a program of its own (`python -m services.worker.executor`), started by the worker's pool over
one end of a socket pair. It imports the app, says "ready", and then answers each call with one
result. It knows nothing of the mesh: no credentials in its environment, no connection but the one
to its worker, no code of the services but this package.

    worker                                executor
      │   call {job, type, …} + input        │
      │─────────────────────────────────────▶│  runs the handler
      │   printed / progress / extend / …    │
      │◀─────────────────────────────────────│
      │   checkpoint (any number)            │
      │◀─────────────────────────────────────│
      │   stored                             │
      │─────────────────────────────────────▶│  goes on
      │   returned | raised | snoozed        │
      │◀─────────────────────────────────────│  waits for the next call

Ends
    It leads a session and a process group, so that whatever its handler started can be killed with
    it. SIGTERM raises AttemptCancelled in the handler, so that `finally` blocks run; a handler that
    does not end by that is killed. The kernel kills the executor when its worker dies
    (PR_SET_PDEATHSIG); what a handler started beside it is killed by the guard (`guard`), a tiny
    process that outlives the worker just long enough for that.

Frames are a header in JSON and a body of bytes, both with their length in front. Nothing that
arrives is ever executed or unpickled.
"""
