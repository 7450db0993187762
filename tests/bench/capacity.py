"""`python -m tests.bench.capacity [RATE …]`: what a mesh past one machine needs; what gives out.

A model, not a measurement: it takes what `make bench` measured per job (or the defaults below) and
says, for a rate, how many of each part it takes, which part cannot be multiplied, and how long a
batch waits at each hop. The waits are simulated: batches arrive at random, each at one process of
the part, which serves them one by one.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

MEASURED = Path("bench/results/latest.json")
RATES = (10_000, 100_000, 1_000_000)
BATCH = 500
#: No part is planned to be busier than this.
LOAD = 0.6
EVENTS_PER_JOB = 4


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of process: what a job costs it, and how far it can be multiplied."""

    name: str
    us_per_job: float
    most: int
    bound: str
    """Why there cannot be more than `most` of them."""


#: CPU microseconds per job in full batches on a quiet machine, by process.
DEFAULTS = {
    "enqueue": 60.0,
    "orchestrator": 95.0,
    "postgres": 82.0,
    "etcd": 45.0,
    "scheduler": 28.0,
    "worker": 62.0,
    "nats": 6.0,
}
#: Of etcd's work on a lock the part that one member does alone, in order: the log and its apply.
ETCD_SERIAL = 0.6
#: To each Enqueue replica that has watchers, every hint of the mesh is sent.
HINT_BYTES = 45 * EVENTS_PER_JOB
HINT_SCAN_US = 0.15 * EVENTS_PER_JOB
NATS_BYTES_PER_S = 1_000_000_000
WAL_BYTES_PER_S = 200_000_000


def parts(cost: dict[str, float]) -> list[Part]:
    return [
        Part("enqueue", cost["enqueue"], 10_000, ""),
        Part("orchestrator", cost["orchestrator"], 10_000, ""),
        Part("shard", cost["postgres"], 4096, "one bucket per shard"),
        Part("scheduler", cost["scheduler"], 4096, "shards are divided among them"),
        Part("etcd", cost["etcd"] * ETCD_SERIAL, 1, "one raft log per cluster"),
        Part("worker", cost["worker"], 100_000, ""),
    ]


def needed(part: Part, rate: float) -> int:
    return max(1, -(-round(rate * part.us_per_job) // round(1e6 * LOAD)))


def waits(us_per_job: float, rate: float, count: int, batches: int = 20_000) -> tuple[float, float]:
    """Milliseconds from a batch's arrival at a hop to its end there: p50 and p99."""
    service = us_per_job * BATCH / 1e6
    arrivals = random.Random(11)
    free = [0.0] * count
    batches = max(batches, 200 * count)
    now, took = 0.0, []
    for _ in range(batches):
        now += arrivals.expovariate(rate / BATCH)
        at = arrivals.randrange(count)
        free[at] = max(now, free[at]) + service
        took.append((free[at] - now) * 1e3)
    took.sort()
    return took[len(took) // 2], took[len(took) * 99 // 100]


def fan_out(rate: float, replicas: int) -> list[str]:
    """What hints cost, which every Enqueue replica hears whatever it watches."""
    per_replica = rate * HINT_BYTES
    scan = rate * HINT_SCAN_US / 1e6
    out = per_replica * replicas / NATS_BYTES_PER_S
    lines = [
        f"  hints: {per_replica / 1e6:,.0f} MB/s and {scan:.2f} of a core at each of {replicas} "
        f"Enqueue replicas; {out:.1f} broker links full"
    ]
    if scan > 1 - LOAD or out > 1:
        lines.append("  LIMIT: hints go to every replica; give them subjects by bucket")
    return lines


def told(rate: float, cost: dict[str, float], wal: float) -> None:
    say(f"\n{rate:,.0f} jobs/s")
    replicas = 1
    for part in parts(cost):
        count = needed(part, rate)
        if part.name == "enqueue":
            replicas = count
        p50, p99 = waits(part.us_per_job, rate, count)
        over = f"  LIMIT: {part.bound}: partition it {count} ways" if count > part.most else ""
        say(f"  {part.name:14}{count:6} at {LOAD:.0%}  batch {p50:6.1f} / {p99:.1f} ms{over}")
    shards = needed(parts(cost)[2], rate)
    volume = rate * wal / shards
    late = "  LIMIT: the log's disk; more shards" if volume > WAL_BYTES_PER_S else ""
    say(f"  write-ahead log: {volume / 1e6:,.0f} MB/s per shard{late}")
    for line in fan_out(rate, replicas):
        say(line)


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rates", nargs="*", type=float, default=RATES)
    parser.add_argument("--measured", action="store_true", help=f"take costs from {MEASURED}")
    given = parser.parse_args()
    cost, wal = DEFAULTS, 2500.0
    if given.measured:
        found = json.loads(MEASURED.read_text())
        cost = DEFAULTS | found["cpu_us_per_job"]
        wal = found["wal_bytes_per_job"]
    for rate in given.rates:
        told(rate, cost, wal)


if __name__ == "__main__":
    main()
