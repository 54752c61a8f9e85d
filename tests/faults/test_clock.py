"""The machine's clock is set while a search runs: an hour back, then a day ahead."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import simulation
from study_state import Undisturbed, state_of

_TIMEOUT_S = 1200.0
HOUR_S, DAY_S = 3600, 86400

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler to build a clock of one's own with"),
]


def test_a_clock_that_is_set_changes_nothing(
    tmp_path: Path, new_folder: Callable[..., Path], undisturbed: Undisturbed
) -> None:
    folder = new_folder(tmp_path / "study", search__time_limit="10m")
    clock, log, library = tmp_path / "clock", folder / "log", tmp_path / "own_clock.so"
    source = Path(__file__).with_name("own_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
    own = {"LD_PRELOAD": str(library), "CLOCK_FILE": str(clock)}
    set_clock(clock, 0)
    assert abs(told_time(own) - time.time()) < HOUR_S
    set_clock(clock, DAY_S)
    assert abs(told_time(own) - time.time() - DAY_S) < HOUR_S, "the clock can be set"
    set_clock(clock, 0)
    with log.open("w") as err:
        driver = subprocess.Popen(
            [sys.executable, simulation.__file__, "--trial-s", "0.5", "run", "search.yaml"],
            cwd=folder,
            env={**os.environ, **own},
            stdout=subprocess.DEVNULL,
            stderr=err,
        )
        try:
            for number, offset in ((1, -HOUR_S), (4, DAY_S)):
                wait_for_trial(driver, log, number)
                set_clock(clock, offset)
            assert driver.wait(_TIMEOUT_S) == 0, log.read_text()
        finally:
            driver.kill()
            driver.wait()
    assert "Traceback" not in log.read_text()
    assert state_of(folder) == undisturbed.state


def set_clock(clock: Path, offset_s: int) -> None:
    """In one step, so that nobody reads half a number."""
    coming = clock.with_suffix(".new")
    coming.write_text(str(offset_s))
    coming.rename(clock)


def told_time(environment: dict[str, str]) -> float:
    program = [sys.executable, "-c", "import time; print(time.time())"]
    done = subprocess.run(program, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    return float(done.stdout)


def wait_for_trial(driver: subprocess.Popen[bytes], log: Path, number: int) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while f"trial   {number}" not in log.read_text():
        assert driver.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
