"""Watches over a source that tells the truth and a feed that may lose anything."""

import asyncio
from contextlib import aclosing
from uuid import NAMESPACE_OID, uuid5

import pytest

from services.enqueue.app.watch import Kind
from services.mesh.errors import JobNotFound, ResumeTokenInvalid, SlowConsumer
from tests.unit.enqueue.watch_stand import NOBODY, J, K, Stand, news, take


async def test_a_watch_is_the_state_now_and_then_every_change_to_the_last():
    stand = Stand()
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        assert (await anext(watch)).message == "j v1"
        stand.hub.hinted([stand.rows.add(J)])
        stand.hub.hinted([stand.rows.add(J, ended=True)])
        assert [(d.kind, d.message) for d in await take(watch, 2)] == [
            (Kind.EVENT, "j v2"),
            (Kind.EVENT, "j v3"),
        ]
        with pytest.raises(StopAsyncIteration):
            await anext(watch)


async def test_a_lost_hint_is_repaired_when_the_next_one_comes():
    stand = Stand()
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        await anext(watch)
        stand.rows.add(J)
        stand.hub.hinted([stand.rows.add(J)])
        await stand.hub.run_once()
        assert [d.message for d in await take(watch, 2)] == ["j v2", "j v3"]


async def test_a_lost_last_hint_is_found_by_the_re_read():
    stand = Stand()
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        await anext(watch)
        stand.rows.add(J, ended=True)
        await stand.reread()
        assert (await anext(watch)).message == "j v2"


async def test_what_changes_between_snapshot_and_subscription_is_not_lost():
    stand = Stand()
    stand.rows.add(J)
    original = stand.rows.snapshots

    async def snapshots(namespace, job_ids):
        answer = await original(namespace, job_ids)
        stand.hub.hinted([stand.rows.add(J)])  # committed while the snapshot was on its way
        return answer

    stand.rows.snapshots = snapshots
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        assert [d.message for d in await take(watch, 2)] == ["j v1", "j v2"]


def committed_meanwhile(stand, commits):
    """Have the hub hear of `commits()` after the rows were read and before they are answered."""
    original = stand.rows.snapshots

    async def snapshots(namespace, job_ids):
        answer = await original(namespace, job_ids)
        stand.hub.hinted(commits())
        return answer

    stand.rows.snapshots = snapshots


def reads_of(stand):
    """Every read of events from now on."""
    original, reads = stand.rows.changes_after, []

    async def changes_after(seen):
        reads.append(dict(seen))
        return await original(seen)

    stand.rows.changes_after = changes_after
    return reads


async def test_a_watch_begins_with_one_read_whatever_is_hinted_meanwhile():
    stand = Stand()
    stand.rows.add(J)
    reads = reads_of(stand)
    committed_meanwhile(stand, lambda: [stand.rows.add(J), stand.rows.add(J, ended=True)])
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        assert [d.message async for d in watch] == ["j v1", "j v2", "j v3"]
    assert reads == []


async def test_a_hint_lost_while_a_watch_begins_is_read_when_a_later_one_came():
    stand = Stand()
    stand.rows.add(J)
    committed_meanwhile(stand, lambda: [stand.rows.add(J), stand.rows.add(J, ended=True)][1:])
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        assert (await anext(watch)).message == "j v1"
        await stand.hub.run_once()  # as the timer of the gap would
        assert [d.message async for d in watch if d.message] == ["j v2", "j v3"]


async def test_more_hints_than_may_be_held_while_a_watch_begins_are_read_instead():
    stand = Stand(backlog=4)
    stand.rows.add(J)
    stand.rows.add(K)
    reads = reads_of(stand)
    committed_meanwhile(stand, lambda: [stand.rows.add(K)] * 4 + [stand.rows.add(J, ended=True)])
    async with aclosing(stand.hub.watch("n", [J, K], "")) as watch:
        messages = [d.message for d in await take(watch, 4)]
    assert (messages[:2], sorted(messages[2:])) == (["j v1", "k v1"], ["j v2", "k v2"])
    assert reads == [{J: 1, K: 1}]


async def test_what_a_resumed_watch_missed_is_read_and_what_is_hinted_meanwhile_follows():
    stand = Stand()
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        token = (await anext(watch)).token
    stand.rows.add(J)
    committed_meanwhile(stand, lambda: [stand.rows.add(J, ended=True)])
    async with aclosing(stand.hub.watch("n", [J], token)) as watch:
        assert [d.message async for d in watch] == ["j v2", "j v3"]


async def test_repeated_hints_are_delivered_once():
    stand = Stand()
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        await anext(watch)
        change = stand.rows.add(J)
        stand.hub.hinted([change, change])
        stand.hub.hinted([change])
        stand.hub.hinted([stand.rows.add(J, ended=True)])
        assert [d.message for d in await take(watch, 2)] == ["j v2", "j v3"]


async def test_a_resumed_watch_goes_on_after_the_token_without_a_snapshot():
    stand = Stand()
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        token = (await anext(watch)).token
    stand.rows.add(J)
    stand.rows.add(J, ended=True)
    other = Stand()
    other.rows = stand.rows
    other.hub._source = stand.rows
    async with aclosing(other.hub.watch("n", [J], token)) as watch:
        assert [(d.kind, d.message) for d in await take(watch, 2)] == [
            (Kind.EVENT, "j v2"),
            (Kind.EVENT, "j v3"),
        ]


async def test_a_watch_that_resumes_where_nothing_happened_hears_so_at_once():
    stand = Stand()
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        token = (await anext(watch)).token
    stand.hub._heartbeat = 3600
    async with aclosing(stand.hub.watch("n", [J], token)) as watch, asyncio.timeout(5):
        beat = await anext(watch)
        assert (beat.kind, bool(beat.token)) == (Kind.HEARTBEAT, True)


async def test_a_token_of_another_watch_is_refused():
    stand = Stand()
    stand.rows.add(J)
    stand.rows.add(K)
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        token = (await anext(watch)).token
    with pytest.raises(ResumeTokenInvalid):
        await anext(stand.hub.watch("n", [K], token))


async def test_an_unknown_job_is_not_found_and_leaves_nothing_behind():
    stand = Stand()
    with pytest.raises(JobNotFound):
        await anext(stand.hub.watch("n", [NOBODY], ""))
    assert stand.hub._watches == {}
    assert stand.feed.sink is None


async def test_an_idle_watch_has_a_heartbeat_with_the_shards_that_are_away():
    stand = Stand()
    stand.rows.add(J)
    stand.rows.lagging = ["s1"]
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        await anext(watch)
        await stand.reread()
        beat = await anext(watch)
        assert (beat.kind, beat.lagging) == (Kind.HEARTBEAT, ("s1",))


async def test_a_drain_ends_the_watch_with_its_token():
    stand = Stand()
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        await anext(watch)
        stand.drain.set()
        goodbye = await news(watch)
        assert goodbye.kind is Kind.DRAIN
        assert goodbye.token
        with pytest.raises(StopAsyncIteration):
            await anext(watch)


async def test_a_reader_that_falls_too_far_behind_is_cut_off():
    stand = Stand(backlog=3)
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        await anext(watch)
        for _ in range(10):
            stand.hub.hinted([stand.rows.add(J)])
        await take(watch, 3)
        with pytest.raises(SlowConsumer):
            await anext(watch)


async def test_nothing_follows_what_did_not_fit_so_the_last_token_is_valid():
    stand = Stand(backlog=3)
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        await anext(watch)
        for _ in range(5):
            stand.hub.hinted([stand.rows.add(J)])
        received = await take(watch, 1)
        stand.hub.hinted([stand.rows.add(J)])  # there is room again, but not for what was dropped
        received += await take(watch, 2)
        with pytest.raises(SlowConsumer):
            await anext(watch)
    async with aclosing(stand.hub.watch("n", [J], received[-1].token)) as watch:
        received += await take(watch, 3)
    assert [delivery.message for delivery in received] == [f"j v{n}" for n in range(2, 8)]


async def test_no_token_of_a_batch_covers_what_did_not_fit():
    stand = Stand(backlog=3)
    stand.rows.add(J)
    tokens, seen = [], []
    async with aclosing(stand.hub.watch("n", [J], "", most=10)) as watch:
        tokens += [(await anext(watch)).token]
        for _ in range(5):
            stand.hub.hinted([stand.rows.add(J)])
        batch = await anext(watch)
        tokens += [batch.token]
        with pytest.raises(SlowConsumer):
            await anext(watch)
    token = next(token for token in reversed(tokens) if token)
    async with aclosing(stand.hub.watch("n", [J], token, most=10)) as watch:
        while "j v6" not in seen:
            seen += [delivery.message for delivery in (await anext(watch)).message]
    assert "j v5" in seen


async def test_hints_are_subscribed_to_only_while_somebody_watches():
    stand = Stand()
    stand.rows.add(J)
    assert stand.feed.sink is None
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        await anext(watch)
        assert stand.feed.sink is not None
    assert stand.feed.sink is None


async def test_many_watchers_of_many_jobs_each_see_every_version_in_order():
    stand = Stand(backlog=10_000)
    jobs = [str(uuid5(NAMESPACE_OID, f"j{n}")) for n in range(20)]
    for job in jobs:
        stand.rows.add(job)

    async def follow(wanted):
        seen = {job: [] for job in wanted}
        async with aclosing(stand.hub.watch("n", wanted, "")) as watch:
            async for delivery in watch:
                if delivery.message:
                    job, version = delivery.message.split(" v")
                    seen[job].append(int(version))
        return seen

    watchers = [asyncio.create_task(follow(jobs[n : n + 5])) for n in range(0, 20, 5)]
    await asyncio.sleep(0)
    while sum(watch.began for watch in stand.hub._all) < 4:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for step in range(2, 6):
        for job in jobs:
            change = stand.rows.add(job, ended=step == 5)
            if (jobs.index(job) + step) % 3:
                stand.hub.hinted([change])
        await stand.reread()
    for seen in await asyncio.gather(*watchers):
        assert all(versions == [1, 2, 3, 4, 5] for versions in seen.values())


async def test_a_watcher_of_many_jobs_gets_what_there_is_in_one_batch():
    stand = Stand()
    jobs = [str(uuid5(NAMESPACE_OID, f"j{n}")) for n in range(5)]
    for job in jobs:
        stand.rows.add(job)
    async with aclosing(stand.hub.watch("n", jobs, "", most=100)) as watch:
        first = await anext(watch)
        assert first.kind is Kind.BATCH
        assert [part.kind for part in first.message] == [Kind.SNAPSHOT] * 5
        assert first.token
        stand.hub.hinted([stand.rows.add(job, ended=True) for job in jobs])
        second = await anext(watch)
        assert [part.kind for part in second.message] == [Kind.EVENT] * 5
        with pytest.raises(StopAsyncIteration):
            await anext(watch)


# --- progress


async def test_progress_is_the_newest_and_only_for_those_who_asked():
    stand = Stand()
    stand.rows.add(J)
    asked = stand.hub.watch("n", [J], "", progress=True)
    other = stand.hub.watch("n", [J], "")
    assert [(await anext(watch)).kind for watch in (asked, other)] == [Kind.SNAPSHOT] * 2
    stand.advances.sink([(J, "one"), (K, "somebody else's")])
    stand.advances.sink([(J, "two")])
    said = await anext(asked)
    assert (said.kind, said.message, said.token) == (Kind.PROGRESS, "two", "")
    assert (await anext(other)).kind is Kind.HEARTBEAT
    await asked.aclose()
    assert stand.advances.sink is None
    await other.aclose()


async def test_of_a_job_that_has_ended_no_progress_is_told():
    stand = Stand()
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "", progress=True)) as watch:
        await anext(watch)
        stand.hub.hinted([stand.rows.add(J, ended=True)])
        stand.advances.sink([(J, "too late")])
        assert [delivery.kind async for delivery in watch] == [Kind.EVENT]


async def test_hints_that_overtook_each_other_are_delivered_in_order_without_reading():
    stand = Stand()
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        await anext(watch)
        second, third, last = stand.rows.add(J), stand.rows.add(J), stand.rows.add(J, ended=True)
        stand.hub.hinted([last, third])
        stand.hub.hinted([second])
        assert [d.message for d in await take(watch, 3)] == ["j v2", "j v3", "j v4"]


async def test_one_token_covers_a_whole_batch():
    stand = Stand()
    stand.rows.add(J)
    stand.rows.add(K)
    async with aclosing(stand.hub.watch("n", [J, K], "", most=10)) as watch:
        first = await anext(watch)
        assert [d.token for d in first.message] == ["", ""]
    stand.hub.hinted([stand.rows.add(J)])
    async with aclosing(stand.hub.watch("n", [J, K], first.token, most=10)) as watch:
        assert [d.message for d in (await anext(watch)).message] == ["j v2"]


class JustInTime(asyncio.Event):
    """An event for which a wait is given up at the very moment that something happens."""

    def __init__(self, happens):
        super().__init__()
        self.happens = happens

    async def wait(self):
        try:
            return await super().wait()
        except asyncio.CancelledError:
            self.happens()
            raise


async def test_the_token_of_a_heartbeat_covers_nothing_that_was_not_delivered():
    stand = Stand()
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        await anext(watch)
        (only,) = stand.hub._all
        only.wake = JustInTime(lambda: stand.hub.hinted([stand.rows.add(J)]))
        last = await anext(watch)
    async with aclosing(stand.hub.watch("n", [J], last.token)) as watch:
        stand.hub.hinted([stand.rows.add(J, ended=True)])
        rest = [d.message async for d in watch if d.message]
    assert [message for message in (last.message, *rest) if message] == ["j v2", "j v3"]


async def test_handlers_that_say_more_than_is_read_hold_up_no_transition():
    stand = Stand()
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "", progress=True)) as watch:
        await anext(watch)
        stand.hub.advanced([(J, "said")])
        await anext(watch)
        stand.hub.hinted([stand.rows.add(J)])
        read = []
        for _ in range(3):
            stand.hub.advanced([(J, "said")])
            read.append((await anext(watch)).message)
    assert "j v2" in read


async def test_nothing_is_read_for_a_watch_that_was_cut_off():
    stand = Stand(backlog=2)
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        await anext(watch)
        stand.hub.hinted([stand.rows.add(J) for _ in range(3)])
        reads = reads_of(stand)
        await stand.reread()
        assert reads == []
        assert [d.message for d in await take(watch, 2)] == ["j v2", "j v3"]
        with pytest.raises(SlowConsumer):
            await anext(watch)


async def test_of_what_comes_too_early_no_more_is_kept_than_a_moment_brings():
    stand = Stand(backlog=5000)
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        await anext(watch)
        second, *early = [stand.rows.add(J) for _ in range(2000)]
        stand.hub.hinted(early)
        (only,) = stand.hub._all
        assert sum(map(len, only._early.values())) < 100
        stand.hub.hinted([second])
        await stand.reread()
        assert [d.message for d in await take(watch, 2000)] == [f"j v{n}" for n in range(2, 2002)]


async def test_a_gap_that_closed_in_part_waits_for_no_re_read():
    stand = Stand()
    stand.rows.add(J)
    async with aclosing(stand.hub.watch("n", [J], "")) as watch:
        await anext(watch)
        second, _, fourth = [stand.rows.add(J) for _ in range(3)]
        stand.hub.hinted([fourth])
        stand.hub.hinted([second])
        await stand.hub.run_once()  # as the timer of the gap would
        assert [d.message for d in await take(watch, 3)] == ["j v2", "j v3", "j v4"]
