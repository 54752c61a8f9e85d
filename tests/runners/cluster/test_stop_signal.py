from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: Ends itself by SIGTERM as soon as Ray has put its own handler in place of ours.
_SCRIPT = """
import os, signal, threading, time
import psutil
from runners.ray_runner import RayRunner, RayRunnerOptions

def interrupt(number, frame):
    raise KeyboardInterrupt

def send_once_ray_took_it():
    while signal.getsignal(signal.SIGTERM) is interrupt:
        time.sleep(0.01)
    time.sleep({pause_s})
    os.kill(os.getpid(), signal.SIGTERM)

signal.signal(signal.SIGTERM, interrupt)
threading.Thread(target=send_once_ray_took_it, daemon=True).start()
try:
    RayRunner(RayRunnerOptions(resources_per_trial={{"CPU": 1.0}})).open()
    time.sleep(30)
except KeyboardInterrupt:
    assert signal.getsignal(signal.SIGTERM) is interrupt
    print("interrupted", flush=True)
"""


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("pause_s", [0.0, 1.0, 2.0])
def test_sigterm_while_ray_starts_is_the_callers(pause_s: float) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(pause_s=pause_s)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
