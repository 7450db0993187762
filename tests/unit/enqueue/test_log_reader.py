"""Reading the log of a job: kept lines, then live ones, each once, over retries."""

from __future__ import annotations

from services.enqueue.app.logs import LogReader, Reading
from services.enqueue.app.watch import Delivery, Kind
from services.enqueue.ports import Tried
from services.mesh.jobs.logs import LogLine
from services.mesh.runtime import DrainSignal


def lines(*numbers):
    return [LogLine(n, n, f"line {n}") for n in numbers]


class Source:
    """Each round of reading finds the next of these states."""

    def __init__(self, *rounds, kept=None, live=None) -> None:
        self.rounds = list(rounds)
        self.objects, self.streams = kept or {}, live or {}
        self.asked = []

    async def dispatches(self, namespace, job_id):
        return self.rounds.pop(0) if len(self.rounds) > 1 else self.rounds[0]

    async def kept(self, namespace, job_id, fence):
        return self.objects.get(fence, ())

    async def live(self, job_id, tried, after, *, once):
        self.asked.append((tried.fence, after, once))
        for part in self.streams.get(tried.fence, ()):
            yield part


class Watches:
    """A watch that has something to say so often."""

    def __init__(self, deliveries) -> None:
        self._deliveries = deliveries

    async def watch(self, namespace, job_ids, token):
        for kind in self._deliveries:
            yield Delivery(kind)


RUNNING, ENDED = Tried(1, 1, "w1", False), Tried(1, 1, "w1", True)


async def read(source, deliveries=(), once=False, **reading):
    reader = LogReader(source, Watches(deliveries), DrainSignal())
    parts = reader.read(Reading("n", "j", **reading), once=once)
    return [(tried.fence, line.number) async for tried, part in parts for line in part]


async def test_live_lines_are_not_given_again_when_they_were_kept():
    source = Source(
        ([RUNNING], False),
        ([ENDED], True),
        kept={1: lines(1, 2, 3)},
        live={1: [lines(1), lines(2)]},
    )
    assert await read(source, [Kind.SNAPSHOT, Kind.EVENT]) == [(1, 1), (1, 2), (1, 3)]


async def test_what_a_worker_did_not_tell_is_read_when_it_was_kept():
    source = Source(([RUNNING], False), ([ENDED], True), kept={1: lines(1, 2)})
    assert await read(source, [Kind.SNAPSHOT, Kind.HEARTBEAT]) == [(1, 1), (1, 2)]


async def test_a_reading_goes_on_over_retries_to_the_end_of_the_job():
    second = Tried(2, 2, "w2", False)
    source = Source(
        ([ENDED, second], False),
        ([ENDED, Tried(2, 2, "w2", True)], True),
        kept={1: lines(1), 2: lines(1, 2)},
        live={2: [lines(1)]},
    )
    assert await read(source, [Kind.EVENT] * 9) == [(1, 1), (2, 1), (2, 2)]
    assert source.asked == [(2, 0, False)]


async def test_once_is_what_there_is_now():
    source = Source(
        ([ENDED, Tried(2, 2, "w2", False)], False), kept={1: lines(1)}, live={2: [lines(1)]}
    )
    assert await read(source, once=True) == [(1, 1), (2, 1)]
    assert source.asked == [(2, 0, True)]


async def test_one_attempt_is_followed_until_the_next_begins():
    source = Source(([ENDED, Tried(2, 2, "w2", False)], False), kept={1: lines(1)})
    assert await read(source, [Kind.EVENT] * 2, attempt=1) == [(1, 1)]
    assert source.asked == []


async def test_a_caller_goes_on_after_the_last_line_it_received():
    tries = [ENDED, Tried(1, 2, "w2", True), Tried(1, 3, "w3", True)]
    source = Source((tries, True), kept={1: lines(1), 2: lines(1, 2), 3: lines(1)})
    assert await read(source, once=True, fence=2, number=1) == [(2, 2), (3, 1)]


async def test_a_drain_ends_the_reading():
    source = Source(([RUNNING], False))
    assert await read(source, [Kind.DRAIN, Kind.EVENT]) == []
    assert source.asked == []
