"""A process that loads the machine on and off, as a neighbour on a shared one does; noise.py runs it.

python benchmarks/cpu_hog.py --seed 0 --cores 2          # until it is stopped
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

#: Seconds that a load, or a rest, lasts at least and at most.
PERIOD_S = (0.5, 5.0)
#: Multiplies matrices that fill a core's cache, as training does, on one core.
_BURN = "import numpy\na = numpy.random.rand(512, 512)\nwhile True: a @ a"
_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Loads one core or several, on and off.")
    parser.add_argument("--seed", type=int, default=0, help="of the lengths of the periods")
    parser.add_argument("--cores", type=int, default=2, help="that are loaded at most")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _end)
    parent = os.getppid()
    with _burners(options.cores) as burners:
        for burning, seconds in _periods(random.Random(options.seed), options.cores):
            for burner in burners[:burning]:
                burner.send_signal(signal.SIGCONT)
            time.sleep(seconds)
            for burner in burners[:burning]:
                burner.send_signal(signal.SIGSTOP)
            if os.getppid() != parent:
                return  # Whoever started this process is gone.


@contextmanager
def cpu_hog(*, seed: int, cores: int) -> Iterator[None]:
    """Within the context such a process runs."""
    command = [sys.executable, str(Path(__file__).resolve()), "--seed", str(seed), "--cores", str(cores)]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _periods(rng: random.Random, cores: int) -> Iterator[tuple[int, float]]:
    """How many cores are loaded and for how long: none every other time."""
    while True:
        yield rng.randint(1, cores), rng.uniform(*PERIOD_S)
        yield 0, rng.uniform(*PERIOD_S)


@contextmanager
def _burners(cores: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that burn one core each, stopped to begin with."""
    environment = {**os.environ, **_ONE_THREAD}
    burners = [subprocess.Popen([sys.executable, "-c", _BURN], env=environment) for _ in range(cores)]
    try:
        for burner in burners:
            burner.send_signal(signal.SIGSTOP)
        yield burners
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def _end(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    main()
