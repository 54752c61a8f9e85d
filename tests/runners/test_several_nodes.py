"""One cluster of several nodes, in a process of its own: a session has one cluster at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_kind_spread_joined_left_and_shared(tmp_path: Path) -> None:
    script = Path(__file__).parent / "several_nodes.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False, timeout=560
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert " takes " in done.stderr
    assert "trial 4 runs again elsewhere" in done.stderr
    assert done.stdout.splitlines() == [
        "each trial gets GPU: 1 (A100), 2 at a time; H100 is left to other studies",
        "nodes 2 ['accelerator_type:A100']",
        "joined 3",
        "ended [(0, 'COMPLETED'), (1, 'COMPLETED'), (2, 'COMPLETED')]",
        "shares 1 1 1 2",
        "slow [(3, 'COMPLETED'), (4, 'COMPLETED')] 1",
        "asked each trial gets GPU: 1 (H100), 1 at a time; A100 is left to other studies",
        "refused runner.accelerator_type is B200, but no node offers GPU: 1 of that kind; the cluster has A100, H100; "
        "name one of these or null",
    ]
