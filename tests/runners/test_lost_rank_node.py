"""Nodes lost under a trial of four ranks, on a cluster in a process of its own: a session has one cluster at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_trial_of_four_ranks_runs_again_on_what_is_left_or_ends_with_the_reason(tmp_path: Path) -> None:
    script = Path(__file__).parent / "lose_a_rank_node.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False, timeout=880
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "was lost during the trial; running it again" in done.stderr
    # And nothing else: what Ray says of a lost node is no result.
    assert len(done.stdout.splitlines()) == 4, done.stdout
    first, second, third, left = done.stdout.splitlines()
    assert first == "nodes 2 ranks 4"
    assert second == "0 COMPLETED None 4"
    assert third.startswith("1 NODE_LOST rank ")
    assert third.endswith(": node NODE was lost during the trial 0")
    assert left == "left 0 0"
