"""The folder of a test run's servers goes with it, however it ends."""

import subprocess
import sys
from pathlib import Path

from localmesh.scratch import Scratch, remove_abandoned

OWNER = """
import sys
from pathlib import Path
from localmesh.scratch import Scratch

scratch = Scratch(Path(sys.argv[1]))
(scratch.path / "large").write_text("x")
print(scratch.path, flush=True)
sys.stdin.read()
"""


def test_a_folder_is_gone_when_it_is_closed(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    assert scratch.path.is_dir()
    scratch.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_owner_left_is_removed_and_what_is_held_is_not(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().decode().strip())
        assert remove_abandoned(tmp_path) == []
        assert folder.is_dir()
        owner.kill()
        owner.wait()
    assert folder.is_dir()
    scratch = Scratch(tmp_path)
    assert not folder.exists()
    scratch.close()
    assert list(tmp_path.iterdir()) == []


def test_other_peoples_folders_are_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "jobmesh-notes"
    mine.mkdir()
    assert remove_abandoned(tmp_path) == []
    assert mine.is_dir()
