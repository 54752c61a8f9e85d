from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from runners.process_family import FAMILY_VARIABLE, end_family, end_orphans, new_family

#: Starts a process of its own family that outlives it, and says its id.
LEAVE_ORPHAN = """
import os, subprocess
from runners.process_family import FAMILY_VARIABLE, new_family
environment = {**os.environ, FAMILY_VARIABLE: new_family()}
print(subprocess.Popen(["sleep", "600"], env=environment, stdout=-3, stderr=-3, start_new_session=True).pid)
"""


@pytest.fixture
def kept() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose keeper is this one."""
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, FAMILY_VARIABLE: new_family()})
    yield process
    process.kill()
    process.wait()


def has_ended(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_only_those_whose_keeper_is_gone_are_orphans(kept: subprocess.Popen[bytes]) -> None:
    told = subprocess.run([sys.executable, "-c", LEAVE_ORPHAN], capture_output=True, text=True, check=True)
    orphan = int(told.stdout)
    assert psutil.pid_exists(orphan)
    end_orphans()
    assert has_ended(orphan)
    assert kept.poll() is None


def test_a_keeper_that_has_the_id_of_an_earlier_process_is_no_keeper(kept: subprocess.Popen[bytes]) -> None:
    namespace, pid, start, word = new_family().rsplit("/", 3)
    earlier = f"{namespace}/{pid}/{int(start) - 1}/{word}"
    orphan = subprocess.Popen(["sleep", "600"], env={**os.environ, FAMILY_VARIABLE: earlier})
    end_orphans()
    assert orphan.wait(timeout=10) == -9
    assert kept.poll() is None


def test_those_of_another_container_are_left_alone(kept: subprocess.Popen[bytes]) -> None:
    elsewhere = "pid:[1]/1/1/word"
    stranger = subprocess.Popen(["sleep", "600"], env={**os.environ, FAMILY_VARIABLE: elsewhere})
    end_orphans()
    assert stranger.poll() is None
    end_family(elsewhere)
    assert stranger.wait(timeout=10) == -9
    assert kept.poll() is None
