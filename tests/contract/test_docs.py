"""Generated parts of the documentation are what the code says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_state_chart_is_the_transition_table():
    done = subprocess.run([sys.executable, "docs/state_chart.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0, "run: python docs/state_chart.py"
