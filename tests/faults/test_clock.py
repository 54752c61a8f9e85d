"""The machine's clock is set while a search runs: an hour back, then a day ahead."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import simulation
from study_state import Undisturbed, state_of

#: Gives a process a clock of its own; of Debian's package libfaketime.
_LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
_TIMEOUT_S = 1200.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not _LIBRARIES, reason="libfaketime is not installed: no process can have its own clock"),
]


def test_a_clock_that_is_set_changes_nothing(
    tmp_path: Path, new_folder: Callable[..., Path], undisturbed: Undisturbed
) -> None:
    folder = new_folder(tmp_path / "study", search__time_limit="10m")
    clock, log = tmp_path / "clock", folder / "log"
    clock.write_text("+0\n")
    faked = {
        "LD_PRELOAD": str(_LIBRARIES[0]),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with log.open("w") as err:
        driver = subprocess.Popen(
            [sys.executable, simulation.__file__, "--trial-s", "0.5", "run", "search.yaml"],
            cwd=folder,
            env={**os.environ, **faked},
            stdout=subprocess.DEVNULL,
            stderr=err,
        )
        try:
            for number, offset in ((1, "-3600"), (4, "+86400")):
                wait_for_trial(driver, log, number)
                clock.write_text(f"{offset}\n")
            assert driver.wait(_TIMEOUT_S) == 0, log.read_text()
        finally:
            driver.kill()
            driver.wait()
    assert "Traceback" not in log.read_text()
    assert state_of(folder) == undisturbed.state


def wait_for_trial(driver: subprocess.Popen[bytes], log: Path, number: int) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while f"trial   {number}" not in log.read_text():
        assert driver.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
