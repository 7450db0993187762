"""Each service's image holds all that the service imports, and nothing runs as root.

No docker here: what a Dockerfile copies is copied into a folder, and the service is started in it
by an interpreter that sees this folder and the packages of the service's lock, and nothing else.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICES = ("enqueue", "orchestrator", "scheduler", "worker", "scaler")
PACKAGES = Path(sysconfig.get_path("purelib"))
START_SECONDS = 50
#: What is copied into images, never installed there.
OURS = ("services", "jobmesh", "buf", "etcd")

# Starts the service as its entry point does, where packages that the image lacks do not exist, and
# tells what it imported, and from where.
PROBE = """
import json, runpy, sys
service, absent = sys.argv[1], set(json.loads(sys.argv[2]))

class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent)
sys.argv = [service, "--check-config"]
code = "none"
try:
    runpy.run_module(service, run_name="__main__")
except SystemExit as end:
    code = end.code
files = {name: getattr(m, "__file__", None) for name, m in list(sys.modules.items())}
print(json.dumps({"code": code, "files": {n: f for n, f in files.items() if f}}))
"""


class Dockerfile:
    """The instructions of one image, in order."""

    def __init__(self, service: str) -> None:
        text = (ROOT / "services" / service / "Dockerfile").read_text()
        joined = re.sub(r"\\\n", " ", text)
        lines = [line.strip() for line in joined.splitlines()]
        found = [line.partition(" ") for line in lines if line and not line.startswith("#")]
        self.instructions = [(name, rest.strip()) for name, _, rest in found]

    def all(self, name: str) -> list[str]:
        return [rest for found, rest in self.instructions if found == name]

    def environment(self) -> dict[str, str]:
        pairs = [pair for rest in self.all("ENV") for pair in rest.split()]
        return dict(pair.split("=", 1) for pair in pairs)


def build(dockerfile: Dockerfile, app: Path) -> None:
    """Copy what the image copies."""
    for rest in dockerfile.all("COPY"):
        *sources, target = rest.split()
        for source in sources:
            _copy(ROOT / source, app / target)


def _copy(source: Path, target: Path) -> None:
    assert source.exists(), f"{source} is copied into the image, but is not there"
    if source.is_dir():
        skip = shutil.ignore_patterns("__pycache__", "node_modules")
        shutil.copytree(source, target, ignore=skip, dirs_exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def locked(service: str) -> set[str]:
    """The distributions that the image installs."""
    text = (ROOT / "requirements" / f"{service}.txt").read_text()
    return {normal(name) for name in re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==", text, re.M)}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def absent(service: str) -> list[str]:
    """Top-level modules that are installed here, but not in the image."""
    there = locked(service)
    owners = packages_distributions().items()
    return sorted(top for top, names in owners if not {normal(name) for name in names} & there)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_starts_from_what_its_image_holds(service: str, tmp_path: Path) -> None:
    dockerfile = Dockerfile(service)
    build(dockerfile, tmp_path)
    environment = dockerfile.environment()
    paths = environment["PYTHONPATH"].replace("/app", str(tmp_path))
    hidden = [top for top in absent(service) if top not in OURS]
    # Without site (-S) the editable install of the repository is not seen.
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROBE, f"services.{service}", json.dumps(hidden)],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": f"{paths}:{PACKAGES}"},
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    # 2: a setting without default (the shards) is missing; it was asked for, so all was imported.
    assert told["code"] in (0, 2), done.stderr
    ours = {n: f for n, f in told["files"].items() if n.partition(".")[0] in OURS}
    assert f"services.{service}.main" in ours
    assert [n for n, f in ours.items() if not f.startswith(str(tmp_path))] == []


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_runs_without_root_and_installs_only_what_is_hashed(service: str) -> None:
    dockerfile = Dockerfile(service)
    names = [name for name, _ in dockerfile.instructions]
    (user,) = dockerfile.all("USER")
    assert user.split(":")[0] not in ("root", "0")
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert not {"RUN", "COPY", "ADD"} & set(names[names.index("USER") :])
    installs = [rest for rest in dockerfile.all("RUN") if "pip install" in rest]
    assert installs == [
        f"pip install --no-cache-dir --require-hashes -r requirements/{service}.txt"
    ]
    assert dockerfile.all("ENTRYPOINT") == [f'["python", "-m", "services.{service}"]']


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_listens_where_it_says_so_and_not_on_its_own_loopback(service: str) -> None:
    dockerfile = Dockerfile(service)
    listen = dockerfile.environment().get("JOBMESH_LISTEN", "")
    # A worker's port is for those who are let in: whoever runs it says where it is.
    expected = [f"0.0.0.0:{port}" for port in dockerfile.all("EXPOSE")]
    assert [listen] == (expected or [""])
