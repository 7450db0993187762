"""What large blocks took goes back when they are freed, though small ones beside them live on."""

import subprocess
import sys

import pytest

from services.mesh.runtime.allocator import tell_allocator

#: Frees a large block, from which glibc learns; then makes large blocks with small ones between.
STORY = """
import sys
from services.mesh.runtime.allocator import tell_allocator

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

if sys.argv[1] == "told":
    assert tell_allocator()
block = b"x" * 600_000
del block
before = resident()
kept, large = [], []
for n in range(100):
    large.append(b"x" * (300_000 + n))
    kept.append(b"y" * (20_000 + n))
del large
print(resident() - before)
"""


def left_over(how: str) -> int:
    story = [sys.executable, "-c", STORY, how]
    return int(subprocess.run(story, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_process_that_was_told_gives_large_blocks_back() -> None:
    if not tell_allocator():
        pytest.skip("not glibc: there is nothing to tell")
    assert left_over("told") < 4_000_000 < 20_000_000 < left_over("not told")
