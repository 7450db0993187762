"""The claimer: whole batches, one claim per type and shard, nothing lost when things fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from services.mesh.errors import ShardBusy
from services.mesh.jobs.credit import Grab
from services.mesh.jobs.model import Claimed
from services.scheduler.app.claims import ClaimRules
from services.scheduler.app.parking import Parking
from services.scheduler.domain.pace import PaceRules
from services.scheduler.domain.times import Shown
from services.scheduler.domain.word import Word
from tests.unit.scheduler.scheduler_fakes import Bench, until


async def test_due_work_meets_credit_whichever_comes_first() -> None:
    async with Bench("s0") as bench:
        bench.stores["s0"].store("t", 3)
        bench.grab("w", 10)
        bench.board.heard(Word("s0", ["t"]))
        await until(lambda: bench.sent() == 3)
        bench.stores["s0"].store("t", 2)
        bench.board.heard(Word("s0", ["t"]))
        bench.grab("w", 10)
        await until(lambda: bench.sent() == 5)
        assert [len(jobs) for _, jobs in bench.broker.sent] == [3, 2]


async def test_without_due_work_nobody_is_asked() -> None:
    async with Bench("s0") as bench:
        bench.grab("w", 10)
        await bench.passed()
        assert bench.stores["s0"].claims == []


async def test_one_claim_per_type_and_shard_is_under_way() -> None:
    async with Bench("s0") as bench:
        shard = bench.stores["s0"]
        shard.open_door.clear()
        shard.store("t", 100)
        for worker in ("w1", "w2", "w3"):
            bench.grab(worker, 10)
        for _ in range(5):
            bench.board.heard(Word("s0", ["t"]))
            await bench.passed()
        assert shard.most_running == 1
        shard.open_door.set()
        await until(lambda: bench.sent() == 30)
        assert [grab.worker_id for grab, _ in bench.broker.sent] == ["w1", "w2", "w3"]


async def test_different_shards_are_claimed_from_in_parallel() -> None:
    async with Bench("s0", "s1") as bench:
        bench.stores["s0"].open_door.clear()
        for name, store in bench.stores.items():
            store.store("t", 5)
            bench.board.heard(Word(name, ["t"]))
        bench.grab("w1", 5)
        bench.grab("w2", 5)
        await until(lambda: bench.sent() == 5)
        assert bench.stores["s0"].running == 1
        bench.stores["s0"].open_door.set()
        await until(lambda: bench.sent() == 10)


async def test_shards_take_turns_when_credit_is_scarce() -> None:
    async with Bench("s0", "s1", "s2") as bench:
        for name, store in bench.stores.items():
            store.store("t", 50)
            bench.board.heard(Word(name, ["t"]))
        for turn in range(9):
            bench.grab("w", 5)
            await until(lambda done=turn: bench.sent() == 5 * (done + 1))  # type: ignore[misc]
        assert [len(store.claims) for store in bench.stores.values()] == [3, 3, 3]


async def test_a_shard_has_a_bounded_number_of_claims_under_way() -> None:
    async with Bench("s0", rules=ClaimRules(most_per_shard=2)) as bench:
        shard = bench.stores["s0"]
        shard.open_door.clear()
        for type_ in "abcd":
            shard.store(type_, 1)
            bench.grab("w", 1, type_)
        bench.board.heard(Word("s0", list("abcd")))
        await until(lambda: shard.running == 2)
        await bench.passed()
        assert shard.most_running == 2
        shard.open_door.set()
        await until(lambda: bench.sent() == 4)


async def test_a_nudge_during_a_claim_makes_another_one() -> None:
    async with Bench("s0") as bench:
        shard = bench.stores["s0"]
        shard.open_door.clear()
        bench.board.heard(Word("s0", ["t"]))
        bench.grab("w", 10)
        await until(lambda: shard.running == 1)
        shard.store("t", 1)
        bench.board.heard(Word("s0", ["t"]))
        shard.open_door.set()
        await until(lambda: bench.sent() == 1)


async def test_a_failed_claim_costs_neither_flag_nor_credit() -> None:
    async with Bench("s0", "s1") as bench:
        bench.stores["s0"].away = True
        bench.board.heard(Word("s0", ["t"]))
        bench.grab("w", 10)
        await until(lambda: not bench.shards.gate("s0").open)
        bench.stores["s1"].store("t", 2)
        bench.board.heard(Word("s1", ["t"]))
        await until(lambda: bench.sent() == 2)
        bench.grab("w", 10)
        bench.stores["s0"].store("t", 3)
        bench.stores["s0"].away = False
        bench.shards.on_open(lambda _: bench.claimer.nudge())
        await until(lambda: bench.sent() == 5)


async def test_a_shard_that_is_away_holds_credit_only_once() -> None:
    async with Bench("s0") as bench:
        bench.stores["s0"].away = True
        bench.grab("w", 10)
        for _ in range(10):
            bench.board.heard(Word("s0", ["t"]))
            await bench.passed()
        assert len(bench.stores["s0"].claims) == 1
        assert bench.board.book.credit_of("t") == 10


async def test_a_statement_that_took_too_long_takes_the_shard_from_nobody() -> None:
    """What the shard itself says proves that it lives; only no answer closes its gate."""
    async with Bench("s0") as bench:
        shard = bench.stores["s0"]
        closed: list[str] = []
        bench.shards.on_open(closed.append)  # told only after it was closed
        probes = shard.probes
        shard.gives_up = 1
        with pytest.raises(ShardBusy):
            await bench.shards.ask("s0", lambda store: store.pulse())
        assert bench.shards.gate("s0").open
        shard.gives_up = 1
        shard.store("t", 3)
        bench.grab("w", 10)
        bench.board.heard(Word("s0", ["t"]))
        await until(lambda: bench.sent() == 3)
        assert len(shard.claims) == 2, "the one that was given up costs neither flag nor credit"
        assert (closed, shard.probes) == ([], probes)


async def test_a_shard_that_is_read_only_is_not_asked_until_it_can_be_written() -> None:
    async with Bench("s0") as bench:
        shard = bench.stores["s0"]
        shard.away = True
        bench.grab("w", 10)
        bench.board.heard(Word("s0", ["t"]))
        await until(lambda: not bench.shards.gate("s0").open)
        shard.away, shard.writable, probes = False, False, shard.probes
        await until(lambda: shard.probes > probes + 1)
        assert not bench.shards.gate("s0").open
        assert "read only" in bench.shards.gate("s0").error
        assert len(shard.claims) == 1
        shard.writable = True
        await until(lambda: bench.shards.gate("s0").open)


async def test_jobs_that_could_not_be_sent_are_taken_back_by_their_fence() -> None:
    async with Bench("s0") as bench:
        bench.stores["s0"].store("t", 2)
        bench.broker.refuses = True
        bench.board.heard(Word("s0", ["t"]))
        bench.grab("w", 10)
        await until(lambda: len(bench.stores["s0"].swept) == 2)
        bench.broker.connected = False
        await until(lambda: bench.stores["s0"].running == 0)
        assert bench.board.flags.is_raised("t", "s0")


async def test_without_a_broker_nothing_is_claimed() -> None:
    async with Bench("s0") as bench:
        bench.broker.connected = False
        bench.stores["s0"].store("t", 2)
        bench.board.heard(Word("s0", ["t"]))
        bench.grab("w", 10)
        await bench.passed()
        assert bench.stores["s0"].claims == []
        bench.broker.connected = True
        bench.claimer.nudge()
        await until(lambda: bench.sent() == 2)


async def test_own_findings_without_credit_are_passed_on_once_and_nudges_never() -> None:
    async with Bench("s0") as bench:
        bench.board.heard(Word("s0", ["heard"]))
        bench.board.found("s0", ["b", "a"])
        await until(lambda: bool(bench.broker.nudges))
        assert bench.broker.nudges == [("s0", ["a", "b"])]
        bench.board.heard(Word("s0", ["a", "b"]))
        await bench.passed()
        assert len(bench.broker.nudges) == 1


async def test_only_what_has_been_due_for_long_is_passed_on_as_such() -> None:
    """Else each word would make the others look at everything, however long that takes."""
    async with Bench("s0") as bench:
        bench.board.found("s0", ["new"])
        bench.board.found("s0", ["old"], long_due=True)
        await until(lambda: len(bench.broker.nudges) == 2)
        assert bench.broker.long_nudges == [("s0", ["old"])]


async def test_work_that_outlasts_the_credit_is_passed_on() -> None:
    async with Bench("s0") as bench:
        bench.stores["s0"].store("t", 10)
        bench.grab("w", 4)
        bench.board.found("s0", ["t"])
        await until(lambda: bool(bench.broker.nudges))
        assert bench.sent() == 4
        assert bench.broker.nudges == [("s0", ["t"])]


async def test_a_newer_grab_that_lost_its_room_is_answered_empty() -> None:
    async with Bench("s0") as bench:
        shard = bench.stores["s0"]
        shard.open_door.clear()
        shard.store("t", 5)
        bench.board.heard(Word("s0", ["t"]))
        bench.grab("w", 5)
        await until(lambda: shard.running == 1)
        newer = bench.grab("w", 5)
        shard.open_door.set()
        await until(lambda: bool(bench.broker.empty))
        assert bench.broker.empty == [(newer, False)]


async def test_a_paused_type_waits_and_is_not_passed_on() -> None:
    async with Bench("s0") as bench:
        bench.stores["s0"].store("t", 1)
        bench.board.pause("t")
        bench.grab("w", 1)
        bench.board.found("s0", ["t"])
        await bench.passed()
        assert bench.sent() == 0
        assert bench.broker.nudges == []
        bench.board.resume("t")
        await until(lambda: bench.sent() == 1)


async def test_small_arrivals_under_load_gather_into_batches() -> None:
    distance = 0.05
    pace = PaceRules(factor=0, least=distance, most=distance)
    async with Bench("s0", rules=ClaimRules(pace=pace)) as bench:
        began = time.monotonic()
        for _ in range(60):
            bench.stores["s0"].store("t", 1)
            bench.board.heard(Word("s0", ["t"]))
            bench.grab("w", 100)
            await asyncio.sleep(0.003)
        await until(lambda: bench.sent() == 60)
        spent = time.monotonic() - began
        assert len(bench.stores["s0"].claims) <= spent / distance + 2
        assert len(bench.broker.sent[0][1]) == 1, "the first one did not wait"


async def test_claims_end_before_the_claimer_is_finished() -> None:
    async with Bench("s0") as bench:
        shard = bench.stores["s0"]
        shard.open_door.clear()
        shard.store("t", 1)
        bench.board.heard(Word("s0", ["t"]))
        bench.grab("w", 1)
        await until(lambda: shard.running == 1)
        finishing = asyncio.create_task(bench.claimer.finish(5))
        await bench.passed()
        assert not finishing.done()
        shard.open_door.set()
        await finishing
        assert bench.sent() == 1


async def test_a_claim_that_did_not_look_ahead_looks_once_more_in_a_moment() -> None:
    async with Bench("s0", rules=ClaimRules(ahead=0.02)) as bench:
        store = bench.stores["s0"]
        bench.grab("w", 5)
        bench.board.heard(Word("s0", ["t"]))
        await bench.claimer.claims.more()
        store.store("t")  # it was due in a moment, and its timer has gone off already
        await until(lambda: bench.sent() == 1)
        assert len(store.claims) == 2


async def test_what_a_worker_waits_for_leaves_before_anything_else_is_told() -> None:
    async with Bench("s0") as bench:
        order: list[str] = []
        dispatch, loop = bench.broker.dispatch, asyncio.get_running_loop()

        async def send(grab: Grab, jobs: Sequence[Claimed], now: Shown) -> int:
            loop.call_soon(order.append, "sent")
            return await dispatch(grab, jobs, now)

        async def hint(shard: str, worker_id: str, jobs: Sequence[Claimed]) -> None:
            order.append("told")

        bench.broker.dispatch = send  # type: ignore[method-assign]
        bench.broker.hint_claims = hint  # type: ignore[method-assign]
        bench.stores["s0"].store("t", 1)
        bench.grab("w", 1)
        bench.board.heard(Word("s0", ["t"]))
        await until(lambda: len(order) == 2)
        assert order == ["sent", "told"]


async def test_room_wakes_the_claimer_only_if_there_is_word_of_work() -> None:
    async with Bench("s0") as bench:
        woken: list[int] = []
        parking = Parking(
            bench.board, bench.broker, bench.clock, bench.measures, lambda: woken.append(1)
        )
        parking.grabbed(Grab("w", "t", 5, 1, "inbox.w"))
        assert woken == []
        bench.board.heard(Word("s0", ["other"]))
        parking.grabbed(Grab("w", "t", 5, 2, "inbox.w"))
        assert woken == []
        parking.grabbed(Grab("w", "other", 5, 1, "inbox.w"))
        assert woken == [1]
