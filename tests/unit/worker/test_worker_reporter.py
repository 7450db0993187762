"""The reporter over a stream that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from services.mesh.errors import DependencyUnavailable
from services.mesh.jobs.model import Payload
from services.mesh.runtime import Backoff
from services.mesh.testing.waiting import eventually
from services.worker.app import reporter as reporter_module
from services.worker.app.reporter import MAX_REPORTS, Listener, Reporter
from services.worker.domain.attempt import Attempt
from services.worker.domain.ending import (
    Answer,
    Checkpointed,
    Failed,
    HandedBack,
    Progressed,
    Report,
    Started,
    Succeeded,
    Verdict,
)
from services.worker.ports import Orchestrators, ReportStream


def attempt(job: int, fence: int = 1) -> Attempt:
    job_id = UUID(int=job)
    return Attempt(job_id.bytes, fence, "echo", "default", 1)


class Stream(ReportStream):
    def __init__(self) -> None:
        self.told: list[Report] = []
        self.messages: list[int] = []
        self._answers: asyncio.Queue[Sequence[Answer] | None] = asyncio.Queue()

    async def send(self, reports: Sequence[Report]) -> None:
        self.messages.append(len(reports))
        self.told.extend(reports)

    async def answers(self) -> AsyncIterator[Sequence[Answer]]:
        while (answer := await self._answers.get()) is not None:
            yield answer
        raise DependencyUnavailable("orchestrator")

    def answer(self, *reports: Report, verdict: Verdict = Verdict.COMMITTED) -> None:
        told = [Answer(verdict, [(r.attempt.key, r.attempt.fence)]) for r in reports]
        self._answers.put_nowait(told)

    def break_off(self) -> None:
        self._answers.put_nowait(None)


class Replicas(Orchestrators):
    def __init__(self) -> None:
        self.streams: list[Stream] = []

    @asynccontextmanager
    async def open(self, worker_id: str) -> AsyncIterator[ReportStream]:
        self.streams.append(Stream())
        yield self.streams[-1]


class Heard(Listener):
    def __init__(self) -> None:
        self.verdicts: list[tuple[Report, Verdict]] = []
        self.stopped: list[Attempt] = []

    def judged(self, report: Report, verdict: Verdict) -> None:
        self.verdicts.append((report, verdict))

    def stale(self, attempt: Attempt) -> None:
        self.stopped.append(attempt)

    def connected(self, up: bool, why: str = "") -> None:
        pass


class World:
    def __init__(self) -> None:
        self.replicas, self.heard = Replicas(), Heard()
        self.reporter = Reporter("w-1", self.replicas, self.heard)

    @property
    def stream(self) -> Stream:
        return self.replicas.streams[-1]

    def report(self, job: int) -> Report:
        report = Report(attempt(job), Succeeded())
        self.reporter.add(report)
        return report

    async def told(self, count: int) -> None:
        await eventually(lambda: self.replicas.streams != [] and len(self.stream.told) == count)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the answers that a stream owes; asked for before the world."""
    monkeypatch.setattr(reporter_module, "ANSWER_SECONDS", 0.05)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    task = asyncio.create_task(made.reporter.run())
    yield made
    task.cancel()
    await asyncio.wait({task})


async def test_what_gathered_goes_out_in_one_message(world: World) -> None:
    for job in range(MAX_REPORTS + 10):
        world.reporter.add(Report(attempt(job), Succeeded()))
    await world.told(MAX_REPORTS + 10)
    assert world.stream.messages == [MAX_REPORTS, 10]


async def test_while_an_answer_is_on_its_way_reports_gather(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "GATHER_SECONDS", 60.0)
    first = world.report(1)
    await world.told(1)
    world.report(2)
    world.report(3)
    for _ in range(5):
        await asyncio.sleep(0)
    assert world.stream.messages == [1]
    world.stream.answer(first)
    await eventually(lambda: world.stream.messages == [1, 2])


async def test_reports_do_not_wait_long_for_an_answer(world: World) -> None:
    world.report(1)
    await world.told(1)
    world.report(2)
    await eventually(lambda: world.stream.messages == [1, 1])


async def test_many_reports_wait_for_no_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "GATHER_SECONDS", 60.0)
    world.report(0)
    await world.told(1)
    for job in range(1, reporter_module.ENOUGH + 1):
        world.report(job)
    await eventually(lambda: sum(world.stream.messages) == reporter_module.ENOUGH + 1)


async def test_answers_may_come_in_any_order(world: World) -> None:
    reports = [Report(attempt(job), Succeeded()) for job in range(3)]
    for report in reports:
        world.reporter.add(report)
    await world.told(3)
    world.stream.answer(*reversed(reports))
    await world.reporter.idle()
    assert [report for report, _ in world.heard.verdicts] == reports[::-1]


async def test_the_end_of_an_attempt_is_settled_by_its_own_verdict(world: World) -> None:
    one = attempt(1)
    start, end = Report(one, Started()), Report(one, Succeeded())
    world.reporter.add(start)
    await world.told(1)
    world.reporter.add(end)
    await world.told(2)
    world.stream.answer(start)
    world.stream.answer(end, verdict=Verdict.STALE)
    await world.reporter.idle()
    assert world.heard.verdicts == [(end, Verdict.STALE)]


async def test_a_broken_stream_repeats_what_is_open_and_nothing_else(world: World) -> None:
    first, second = (Report(attempt(job), Succeeded()) for job in (1, 2))
    for report in (first, second):
        world.reporter.add(report)
    await world.told(2)
    world.stream.answer(first)
    world.stream.break_off()
    await eventually(lambda: len(world.replicas.streams) == 2)
    await world.told(1)
    assert world.stream.told == [second]


async def test_what_got_lost_on_a_stream_that_lives_is_told_again(
    impatient: None, world: World
) -> None:
    lost, heard = world.report(1), world.report(2)
    await world.told(2)
    world.stream.answer(heard)
    await eventually(lambda: len(world.replicas.streams) > 1 and world.stream.told == [lost])
    world.stream.answer(lost)
    await world.reporter.idle()
    assert world.heard.verdicts == [(heard, Verdict.COMMITTED), (lost, Verdict.COMMITTED)]


async def test_an_orchestrator_that_is_slow_is_heard_in_the_end(
    impatient: None, world: World
) -> None:
    report = world.report(1)
    loop = asyncio.get_running_loop()

    def answers(stream: Stream) -> None:
        loop.call_later(0.3, stream.answer, report)

    answered = 0
    while not world.heard.verdicts:
        for stream in world.replicas.streams[answered:]:
            answers(stream)
            answered += 1
        await asyncio.sleep(0.01)
    assert answered < 6


async def test_of_progress_that_could_not_be_stored_only_the_newest_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "RETRY", Backoff(first=0.001, ceiling=0.001))
    await eventually(lambda: world.replicas.streams != [])
    one, answered = attempt(1), 0
    for number in range(5):
        progress = Progressed(number, 5, "", number)
        world.reporter.add_progress(one, progress)
        await eventually(lambda p=progress: p in [r.what for r in world.stream.told])  # type: ignore[misc]
        while answered < len(world.stream.told):
            world.stream.answer(world.stream.told[answered], verdict=Verdict.RETRY)
            answered += 1
    await eventually(lambda: world.reporter.unanswered <= 2)


async def test_a_stream_that_answers_is_kept_however_often_it_says_retry(
    impatient: None, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter_module, "RETRY", Backoff(first=0.001, ceiling=0.001))
    report = world.report(1)
    loop = asyncio.get_running_loop()
    began, answered = loop.time(), 0
    while loop.time() < began + 0.3:
        answered += 1
        await world.told(answered)
        world.stream.answer(report, verdict=Verdict.RETRY)
    assert len(world.replicas.streams) == 1


async def test_the_start_of_what_ended_is_not_repeated(world: World) -> None:
    one = attempt(1)
    start, end = Report(one, Started()), Report(one, Succeeded())
    for report in (start, end):
        world.reporter.add(report)
    await world.told(2)
    world.stream.break_off()
    await eventually(lambda: len(world.replicas.streams) == 2)
    await world.told(1)
    assert world.stream.told == [end]


async def test_a_stale_start_stops_its_attempt(world: World) -> None:
    start = Report(attempt(1), Started())
    world.reporter.add(start)
    await world.told(1)
    world.stream.answer(start, verdict=Verdict.STALE)
    await world.reporter.idle()
    assert world.heard.stopped == [start.attempt]


async def test_attempts_of_one_job_are_told_apart_by_their_fence(world: World) -> None:
    older = Report(attempt(1, fence=1), HandedBack("lock held"))
    newer = Report(attempt(1, fence=2), Succeeded())
    for report in (older, newer):
        world.reporter.add(report)
    await world.told(2)
    world.stream.answer(newer)
    await eventually(lambda: world.heard.verdicts == [(newer, Verdict.COMMITTED)])
    assert world.reporter.unanswered == 1


async def test_only_the_newest_progress_is_told() -> None:
    world = World()  # no stream yet
    one = attempt(1)
    for done in (1.0, 2.0, 3.0):
        world.reporter.add_progress(one, Progressed(done, 4.0, "", 0))
    assert world.reporter.unanswered == 1
    task = asyncio.create_task(world.reporter.run())
    await world.told(1)
    task.cancel()
    await asyncio.wait({task})
    assert world.stream.told[0].what == Progressed(3.0, 4.0, "", 0)


async def test_progress_that_was_overtaken_before_it_was_told_is_forgotten() -> None:
    world = World()  # no stream yet
    one = attempt(1)
    world.reporter.add_progress(one, Progressed(1.0, 4.0, "", 0))
    world.reporter.add(Report(one, Succeeded()))
    task = asyncio.create_task(world.reporter.run())
    await world.told(1)
    assert world.reporter.unanswered == 1
    world.reporter.add_progress(one, Progressed(2.0, 4.0, "", 0))
    assert world.reporter.unanswered == 2, "it waits with none that was told before"
    task.cancel()
    await asyncio.wait({task})


async def test_an_ending_the_row_cannot_take_is_told_as_a_plain_failure_once(world: World) -> None:
    report = Report(attempt(1), Succeeded())
    world.reporter.add(report)
    await world.told(1)
    world.stream.answer(report, verdict=Verdict.INVALID)
    await world.told(2)
    assert isinstance(report.what, Failed)
    assert report.what.failure.type == "ReportRefused"
    assert world.heard.verdicts == []
    world.stream.answer(report, verdict=Verdict.INVALID)
    await eventually(lambda: bool(world.heard.verdicts))
    assert world.heard.verdicts == [(report, Verdict.INVALID)]


# --- checkpoints of one attempt that are under way at once


class Checkpoints:
    """The verdicts of some checkpoints of one attempt, and the order they were told in."""

    def __init__(self, world: World) -> None:
        self.world, self.attempt = world, attempt(1)
        self.verdicts: dict[str, Verdict] = {}

    def add(self, state: str) -> None:
        what = Checkpointed(Payload.inline(state.encode(), "text/plain"))

        def judged(verdict: Verdict) -> None:
            self.verdicts[state] = verdict

        self.world.reporter.add(Report(self.attempt, what, on_verdict=judged))

    @property
    def told(self) -> str:
        whats = (report.what for report in self.world.stream.told)
        return "".join(_state(what) if isinstance(what, Checkpointed) else "!" for what in whats)

    async def answer(self, told: str, *verdicts: Verdict) -> None:
        """Wait until so much was told; then answer what has no answer yet, in order."""
        await eventually(lambda: self.world.replicas.streams != [] and self.told == told)
        for verdict in verdicts:
            self.world.stream.answer(Report(self.attempt, Started()), verdict=verdict)


def _state(what: Checkpointed) -> str:
    return (what.state.data or b"").decode()


@pytest.fixture
def checkpoints(world: World, monkeypatch: pytest.MonkeyPatch) -> Checkpoints:
    monkeypatch.setattr(reporter_module, "RETRY", Backoff(first=0.01, ceiling=0.02))
    made = Checkpoints(world)
    for state in "ab":
        made.add(state)
    return made


async def test_a_checkpoint_is_not_told_again_once_a_newer_one_is_stored(
    world: World, checkpoints: Checkpoints
) -> None:
    await checkpoints.answer("ab", Verdict.RETRY, Verdict.COMMITTED)
    await world.reporter.idle()
    assert checkpoints.verdicts == dict.fromkeys("ab", Verdict.COMMITTED)
    assert checkpoints.told == "ab"


async def test_a_checkpoint_is_not_told_again_while_a_newer_one_has_no_verdict(
    world: World, checkpoints: Checkpoints
) -> None:
    await checkpoints.answer("ab", Verdict.RETRY)
    other = world.report(2)
    await eventually(lambda: other in world.stream.told)
    world.stream.answer(other, verdict=Verdict.RETRY)
    await eventually(lambda: world.stream.told.count(other) == 2)  # its time has come
    assert checkpoints.told == "ab!!"
    await checkpoints.answer("ab!!", Verdict.COMMITTED)
    await eventually(lambda: checkpoints.verdicts == dict.fromkeys("ab", Verdict.COMMITTED))
    assert checkpoints.told == "ab!!"


async def test_of_checkpoints_to_be_told_again_the_newest_is(
    world: World, checkpoints: Checkpoints
) -> None:
    await checkpoints.answer("ab", Verdict.RETRY, Verdict.RETRY)
    await checkpoints.answer("abb", Verdict.COMMITTED)
    await world.reporter.idle()
    assert checkpoints.verdicts == dict.fromkeys("ab", Verdict.COMMITTED)


async def test_a_checkpoint_is_told_again_if_the_newer_one_cannot_be_stored(
    world: World, checkpoints: Checkpoints
) -> None:
    await checkpoints.answer("ab", Verdict.RETRY, Verdict.INVALID)
    await checkpoints.answer("aba", Verdict.COMMITTED)
    await world.reporter.idle()
    assert checkpoints.verdicts == {"a": Verdict.COMMITTED, "b": Verdict.INVALID}
