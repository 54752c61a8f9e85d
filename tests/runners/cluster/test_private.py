from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.ray
def test_a_cluster_that_does_not_come_up_is_said_in_one_line() -> None:
    """Here since Ray has no folder for its sockets; where its processes are late it is the same."""
    script = "from runners.cluster.private import start_private_cluster; start_private_cluster()"
    environment = {**os.environ, "RAY_TMPDIR": "/dev/null"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 1
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("runners.base.RunnerError: the private Ray cluster did not come up: ")
    assert "/dev/null" in line
    assert line.endswith(
        "it needs room in /tmp or RAY_TMPDIR, and a machine that is not busy with much else; then try again"
    )
