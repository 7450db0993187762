"""The `jobmesh` command.

    app          the commands' tree and the one place where errors become a line and an exit code
    submit       one job now or later, or a schedule
    jobs         get, list, cancel, watch, output
    schedules    schedule …;  pools: pool …;  types: type …;  operators: shard …, drain
    doctor       one line per part of the mesh, what is wrong with it, and what helps
    local        up, down, status, worker: what `localmesh` does, presented
    logs         what a job's handlers logged, or the services of this machine
    demo         the end of `up`: pools for the examples and one job, followed live
    follow       transitions of jobs as they happen;  render: tables and details
    screen       where words go;  options: flags that mean the same everywhere;  connect: addresses

Rules all commands keep: results go to stdout, everything else to stderr; `--json` prints canonical
protobuf JSON, one object per line; no colour in a pipe; an error is one line with a way out, never
a traceback (unless JOBMESH_DEBUG=1). Exit codes: 0 done (with --wait: and SUCCEEDED), 1 the job
ended otherwise or the operation failed, 2 usage or invalid argument, 3 unavailable, 4 out of time.

Start-up time is a feature: this package imports gRPC, protobuf and rich only inside commands.
"""

import sys


def main() -> None:
    """The console script. An install of the SDK alone has it too, and not what it needs."""
    try:
        from jobmesh.cli.app import main as run
    except ModuleNotFoundError as error:
        if error.name != "typer":
            raise
        sys.exit("error: the command is not installed: pip install '/path/to/jobmesh[cli]'")
    run()
