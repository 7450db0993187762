"""submit --inputs-from and watch by filter, as a shell sees them."""

from __future__ import annotations

import json
from pathlib import Path

from jobmesh.v1 import job_pb2

from tests.unit.sdk.cli_runs import Run
from tests.unit.sdk.memory_mesh import MemoryMesh


async def test_each_line_of_a_file_becomes_a_job_in_order(
    run: Run, mesh: MemoryMesh, tmp_path: Path
) -> None:
    mesh.streams = True
    file = tmp_path / "inputs.jsonl"
    file.write_text("".join(f'{{"n": {n}}}\n' for n in range(3500)) + "\n")
    ran = await run("submit", "echo", "--inputs-from", str(file), "--label", "team=x")
    assert ran.code == 0
    ids = ran.out.split()
    assert [mesh.records[i].job.spec.input.data for i in ids] == [
        b'{"n": %d}' % n for n in range(3500)
    ]
    assert ran.err.startswith("3,500 jobs stored in ")
    assert mesh.calls["EnqueueStream"]
    assert dict(mesh.records[ids[0]].job.spec.labels) == {"team": "x"}


async def test_a_bad_line_is_named_and_hinders_no_other(run: Run, mesh: MemoryMesh) -> None:
    ran = await run("submit", "echo", "--inputs-from", "-", stdin='1\nnonsense\n\n"x"\n')
    assert ran.code == 1
    assert len(ran.out.split()) == 2
    assert "line 2: not JSON" in ran.err
    assert "2 jobs stored" in ran.err
    assert "1 not" in ran.err


async def test_refused_jobs_are_told_by_line_in_json(run: Run, mesh: MemoryMesh) -> None:
    ran = await run("submit", "nope", "--inputs-from", "-", "--json", stdin="1\n2\n")
    assert ran.code == 1
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert [line["line"] for line in lines] == [1, 2]
    assert "UNKNOWN_TYPE" in lines[0]["error"]


async def test_what_does_not_go_together_is_refused(run: Run) -> None:
    for more in (["--input", "1"], ["--wait"], ["--key", "k"], ["--every", "5s"]):
        ran = await run("submit", "echo", "--inputs-from", "x.jsonl", *more)
        assert (ran.code, "--inputs-from" in ran.err) == (2, True)
    assert (await run("submit", "echo", "--inputs-from", "missing.jsonl")).code == 2
    assert (await run("watch")).code == 2
    assert (await run("watch", "some-id", "--type", "echo")).code == 2


async def test_watch_by_filter_shows_what_lives_and_what_happens(
    run: Run, mesh: MemoryMesh
) -> None:
    job_id = (await run("submit", "echo")).out.strip()
    mesh.cut_watch = lambda sent: "PERMISSION_DENIED" if sent == 1 else ""
    ran = await run("watch", "--type", "echo", "--label", "a=b", "--state", "running")
    sent = mesh.calls["WatchJobs"][0]
    assert list(sent.filter.types) == ["echo"]
    assert dict(sent.filter.labels) == {"a": "b"}
    assert list(sent.filter.states) == [3]
    assert ran.code == 1
    ran = await run("watch", "--type", "echo")
    assert f"{job_id}  echo  SCHEDULED" in ran.out


async def test_lines_may_be_a_chain(run: Run, mesh: MemoryMesh) -> None:
    ran = await run("submit", "echo", "--inputs-from", "-", "--chain", stdin="1\n\n2\nno\n3\n")
    ids = ran.out.split()
    parents = [[one.job_id for one in mesh.records[i].job.spec.dependencies] for i in ids]
    assert parents == [[], [ids[0]], [ids[1]]]
    assert (await run("submit", "echo", "--chain")).code == 2


async def test_jobs_are_listed_counted_and_cancelled_by_time(run: Run, mesh: MemoryMesh) -> None:
    old, new = (mesh.put(job_pb2.JobSpec(type="echo")) for _ in range(2))
    old.create_time.FromSeconds(old.create_time.seconds - 7200)
    assert (await run("list", "--since", "1h", "--json")).out.count(new.id) == 1
    assert old.id not in (await run("list", "--since", "1h", "--json")).out
    earlier = await run("list", "--until", "1h", "--json")
    assert (old.id in earlier.out, new.id in earlier.out) == (True, False)
    assert (await run("list", "--since", "2020-01-01", "--until", "2020-01-02")).out == ""
    assert (await run("list", "--since", "yesterday")).code == 2


async def test_jobs_are_listed_by_the_schedule_that_made_them(run: Run, mesh: MemoryMesh) -> None:
    other, made = (mesh.put(job_pb2.JobSpec(type="echo")) for _ in range(2))
    made.schedule = "nightly"
    listed = await run("list", "--schedule", "nightly", "--json")
    assert (made.id in listed.out, other.id in listed.out) == (True, False)
