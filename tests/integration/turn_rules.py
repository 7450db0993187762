"""What every store must do when a claim begins with the namespaces in turn. Postgres and the model
of the simulation are held to it alike.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from services.mesh.jobs.model import Claimed
from services.mesh.jobs.turns import Turn, Turned
from services.mesh.store import claiming
from services.mesh.store.answers import ClaimAnswer
from tests.integration.store_rig import EPOCH, new_job

HOUR = timedelta(hours=1)


def by_namespace(jobs: list[Claimed]) -> dict[str, int]:
    return dict(Counter(job.namespace for job in jobs))


def brought(answer: ClaimAnswer) -> Turned:
    assert answer.turned is not None
    return answer.turned


class TurnRules:
    """The tests. `store` is a fixture of whoever inherits them."""

    async def put(self, store: Any, count: int, namespace: str, **fields: Any) -> list[UUID]:
        """Jobs, each due a moment after the one before."""
        jobs = [new_job(namespace=namespace, **fields) for _ in range(count)]
        for job in jobs:
            await store.put_jobs([job], EPOCH)
        return [job.id for job in jobs]

    async def put_crowd(self, store: Any, count: int, namespace: str = "crowd") -> None:
        await store.put_jobs([new_job(namespace=namespace) for _ in range(count)], EPOCH)

    async def test_each_namespace_has_an_equal_part_of_its_longest_due(self, store: Any) -> None:
        await self.put_crowd(store, 50)
        ids = {name: await self.put(store, 10, name) for name in ("a", "b", "z")}
        answer = await store.claim("t", "w1", 9, turn=Turn(besides="crowd"))
        assert by_namespace(answer.jobs) == {"a": 3, "b": 3, "z": 3}
        for name, stored in ids.items():
            assert [job.id for job in answer.jobs if job.namespace == name] == stored[:3]
        assert (brought(answer).jobs, brought(answer).namespaces) == (9, 3)
        assert (brought(answer).last, answer.crowd) == ("", "")

    async def test_what_the_others_leave_is_taken_from_the_front_of_the_line(
        self, store: Any
    ) -> None:
        await self.put_crowd(store, 50)
        await self.put(store, 2, "b")
        answer = await store.claim("t", "w1", 10, turn=Turn(besides="crowd"))
        assert by_namespace(answer.jobs) == {"b": 2, "crowd": 8}
        assert (brought(answer).jobs, brought(answer).namespaces, answer.crowd) == (2, 1, "crowd")
        due = [(job.due_time, job.id.int) for job in answer.jobs]
        assert due == sorted(due), "they start in the order of the line"

    async def test_a_claim_says_whose_job_was_the_last_from_the_line(self, store: Any) -> None:
        await self.put(store, 2, "a")
        await self.put(store, 2, "b")
        assert (await store.claim("t", "w1", 3)).crowd == "b"
        assert (await store.claim("t", "w1", 3)).crowd == "b"
        assert (await store.claim("t", "w1", 3)).crowd == ""

    async def test_with_nobody_to_pass_over_all_have_their_part(self, store: Any) -> None:
        for name in ("a", "b", "c"):
            await self.put(store, 3, name)
        answer = await store.claim("t", "w1", 3, turn=Turn())
        assert by_namespace(answer.jobs) == {"a": 1, "b": 1, "c": 1}

    async def test_a_turn_goes_on_where_the_last_one_stopped_and_round(
        self, store: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.bound(monkeypatch, TURN_NAMESPACES=2)
        for name in ("a", "b", "c", "d", "e"):
            await self.put(store, 10, name)
        after, turns = "", []
        for _ in range(3):
            answer = await store.claim("t", "w1", 4, turn=Turn(after, besides="c"))
            after = brought(answer).last
            turns.append((brought(answer).jobs, after, set(by_namespace(answer.jobs))))
        assert turns[:2] == [(4, "b", {"a", "b"}), (4, "e", {"d", "e"})]
        assert turns[2] == turns[0], "there is nobody after the last: from the first again"

    async def test_no_more_namespaces_are_served_than_there_is_room(self, store: Any) -> None:
        for name in ("a", "b", "c"):
            await self.put(store, 2, name)
        after, served = "", []
        for _ in range(4):
            answer = await store.claim("t", "w1", 1, turn=Turn(after))
            served += [job.namespace for job in answer.jobs]
            after = brought(answer).last
        assert served == ["a", "b", "c", "a"]

    async def test_those_without_due_work_are_passed_by_and_bounded(
        self, store: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.bound(monkeypatch, TURN_STEPS=3)
        for name in ("a", "b", "c"):
            await self.put(store, 1, name, delay=HOUR)
        await self.put(store, 1, "d")
        answer = await store.claim("t", "w1", 5, recent=timedelta(0), turn=Turn())
        assert brought(answer) == Turned(0, 0, "c", brought(answer).took)
        answer = await store.claim("t", "w1", 5, turn=Turn("c"))
        assert (by_namespace(answer.jobs), brought(answer).last) == ({"d": 1}, "")

    async def test_priority_goes_first_within_a_namespace(self, store: Any) -> None:
        await self.put(store, 3, "a")
        urgent = await self.put(store, 1, "a", priority=5)
        await self.put(store, 3, "b")
        answer = await store.claim("t", "w1", 2, turn=Turn())
        assert by_namespace(answer.jobs) == {"a": 1, "b": 1}
        assert answer.jobs[0].id == urgent[0]

    async def test_a_turn_may_be_for_high_priorities_only(self, store: Any) -> None:
        await self.put(store, 5, "crowd", priority=5)
        await self.put(store, 5, "low")
        high = await self.put(store, 1, "other", priority=7)
        level = await self.put(store, 1, "other", priority=5)
        answer = await store.claim("t", "w1", 4, turn=Turn(besides="crowd", least=5))
        assert by_namespace(answer.jobs) == {"other": 2, "crowd": 2}
        assert {*high, *level} < {job.id for job in answer.jobs}
        assert answer.lowest == 5

    async def test_what_expired_or_is_not_due_is_nobodys_turn(self, store: Any) -> None:
        await self.put(store, 1, "late", expire_time=datetime(2020, 1, 1, tzinfo=UTC))
        (soon,) = await self.put(store, 1, "soon", delay=HOUR / 60)
        answer = await store.claim("t", "w1", 5, turn=Turn())
        assert (answer.jobs, brought(answer).namespaces) == ([], 0)
        answer = await store.claim("t", "w1", 5, HOUR, turn=Turn())
        assert [job.id for job in answer.jobs] == [soon]

    async def test_other_types_have_turns_of_their_own(self, store: Any) -> None:
        await self.put(store, 2, "a", type="other")
        answer = await store.claim("t", "w1", 5, turn=Turn())
        assert (answer.jobs, brought(answer).namespaces) == ([], 0)

    def bound(self, monkeypatch: pytest.MonkeyPatch, **bounds: int) -> None:
        for name, value in bounds.items():
            monkeypatch.setattr(claiming, name, value)
