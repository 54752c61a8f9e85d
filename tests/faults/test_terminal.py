"""The terminal goes away while a search runs in it, as when a connection to a machine is lost."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import simulation
from study_state import Undisturbed, state_of

EXIT_INTERRUPTED = 130
_TIMEOUT_S = 1200.0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_terminal_that_closes_interrupts(
    tmp_path: Path, new_folder: Callable[..., Path], undisturbed: Undisturbed
) -> None:
    folder = new_folder(tmp_path / "study")
    master, terminal = pty.openpty()
    driver = subprocess.Popen(
        ["setsid", "--ctty", "--wait", sys.executable, simulation.__file__, "--trial-s", "0.5", "run", "search.yaml"],
        cwd=folder,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    try:
        shown = b""
        deadline = time.monotonic() + _TIMEOUT_S
        while b"trial   1" not in shown:
            assert time.monotonic() < deadline, shown
            shown += os.read(master, 4096)
        os.close(master)
        assert driver.wait(_TIMEOUT_S) == EXIT_INTERRUPTED
    finally:
        driver.kill()
        driver.wait()
    resumed = subprocess.run(
        [sys.executable, simulation.__file__, "run", "search.yaml", "--resume"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    assert resumed.returncode == 0, resumed.stderr
    assert state_of(folder) == undisturbed.state
