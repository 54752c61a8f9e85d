from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

#: Sends itself a signal some time after Ray began to start.
_SCRIPT = """
import os, signal, sys, threading, time
import ray
from runners.ray_runner import RayRunner, RayRunnerOptions

def interrupt(number, frame):
    raise KeyboardInterrupt

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, interrupt)
number, pause_s = signal.Signals(int(sys.argv[1])), float(sys.argv[2])
threading.Timer(pause_s, os.kill, (os.getpid(), number)).start()
try:
    RayRunner(RayRunnerOptions(resources_per_trial={"CPU": 1.0})).open()
    time.sleep(60)
except KeyboardInterrupt:
    assert signal.getsignal(number) is interrupt
    print("interrupted, whole:", ray.is_initialized(), flush=True)
"""


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("pause_s", [0.2, 1.0, 2.0, 3.0, 4.0])
def test_a_signal_while_ray_starts_is_answered_once_it_has(number: str, pause_s: float) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(int(signal.Signals[number])), str(pause_s)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "interrupted, whole: True\n"), done.stderr
