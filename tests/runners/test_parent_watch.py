from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

_CHILD = """
import sys, time
from pathlib import Path
from runners.parent_watch import end_with_parent
folder = Path(sys.argv[1])
def clean_up():
    (folder / "cleaned").touch()
    {then}
end_with_parent(clean_up)
(folder / "ready").touch()
time.sleep(600)
"""
_PARENT = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); sys.stdin.read()"


@pytest.mark.parametrize("then", ["pass", "raise ValueError('while it cleans up')"], ids=["cleans up", "fails to"])
def test_a_child_ends_after_its_parent_which_nobody_collects(tmp_path: Path, then: str) -> None:
    child = [sys.executable, "-c", _CHILD.format(then=then), str(tmp_path)]
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, *child],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    watched = psutil.Process(pid)
    wait_until(lambda: (tmp_path / "ready").exists())
    assert watched.is_running()
    parent.kill()
    wait_until(lambda: not watched.is_running() or watched.status() == psutil.STATUS_ZOMBIE)
    assert (tmp_path / "cleaned").exists()
    assert psutil.Process(parent.pid).status() == psutil.STATUS_ZOMBIE, "it was not collected until now"
    parent.wait()
    parent.communicate()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
