"""A study on a thousand simulated nodes: how long devices wait for the driver, and what the driver and its stores bear.

The driver is real: the loop of `tune run`, Optuna's and MLflow's databases, the study's folder. Devices are simulated,
on a clock of their own: it moves by the processor time that the driver takes, both of its threads one after the other,
and over the time in which the driver waits. So the figures are those of a machine that has nothing else to do.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import os
import platform
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from driver import DEVICE, INSPECTION, write_search
from rich.console import Console
from sqlalchemy import event
from sqlalchemy.engine import Engine

from runners.replay_runner import ReplayRunner
from runners.trial import TrialResult, TrialSpec, TrialStatus, failed_trial
from tuner.progress import PlainProgress
from tuner.results import StudyResults
from tuner.search_file.load import load_search_file
from tuner.study.session import run_study


@dataclass(frozen=True)
class Fleet:
    """What the simulated nodes are like.

    Attributes:
        trial_s: Median length of a trial; three of four lie within a factor of 1.4.
        stragglers: Share of trials that take five times as long.
        failures: Share of trials that fail half way.
        losses: Share of trials whose node is lost, and which run again on another one.
    """

    num_nodes: int
    trial_s: float
    stragglers: float = 0.02
    failures: float = 0.01
    losses: float = 0.005


@dataclass
class Load:
    """What was counted. Seconds are of the simulated clock, unless they say otherwise.

    Attributes:
        most_busy: Devices that had a trial at the same time.
    """

    busy_s: float = 0.0
    most_busy: int = 0
    waited_s: float = 0.0
    driver_cpu_s: float = 0.0
    commits: int = 0
    starts: list[float] = field(default_factory=list)


class FleetRunner(ReplayRunner):
    """Simulated nodes on a clock that moves with the driver's processor time.

    A device waits from the end of one trial until the next begins on it. Only waits between two trials count: until the
    baseline has ended all but one device have nothing to do by design, and at the end there is no more work.
    """

    def __init__(self, fleet: Fleet, load: Load, *, seed: int = 0) -> None:
        super().__init__(DEVICE.measure, capacity=fleet.num_nodes, inspection=INSPECTION)
        self._fleet = fleet
        self._load = load
        self._random = random.Random(seed)
        self._running: list[tuple[float, int, TrialSpec, TrialStatus]] = []
        #: When each device that is free now ended its last trial, the longest ago first.
        self._free_since: list[float] = []
        self._cpu_s = time.process_time()
        self._num_started = 0

    def submit(self, spec: TrialSpec) -> None:
        now = self._now()
        self._load.starts.append(now)
        if self._free_since:
            self._load.waited_s += now - heapq.heappop(self._free_since)
        self._run(spec, now)

    def collect(self, timeout_s: float) -> Sequence[TrialResult]:
        now = self._now()
        if not self._running:
            return ()
        self.clock_s = max(now, min(self._running[0][0], now + timeout_s))
        results = []
        while self._running and self._running[0][0] <= self.clock_s:
            ended_s, _, spec, status = heapq.heappop(self._running)
            if status is TrialStatus.NODE_LOST:  # The runner itself runs it again, as on a real cluster.
                self._run(spec, self.clock_s)
                continue
            heapq.heappush(self._free_since, ended_s)
            results.append(self._result(spec, status))
        return results

    def _run(self, spec: TrialSpec, now: float) -> None:
        fleet, draw = self._fleet, self._random
        length_s = fleet.trial_s * draw.lognormvariate(0.0, 0.3) * (5 if draw.random() < fleet.stragglers else 1)
        status, chance = TrialStatus.COMPLETED, draw.random()
        if chance < fleet.failures + fleet.losses:
            status = TrialStatus.FAILED if chance < fleet.failures else TrialStatus.NODE_LOST
            length_s /= 2
        self._load.busy_s += length_s
        self._num_started += 1
        heapq.heappush(self._running, (now + length_s, self._num_started, spec, status))
        self._load.most_busy = max(self._load.most_busy, len(self._running))

    def _result(self, spec: TrialSpec, status: TrialStatus) -> TrialResult:
        if status is TrialStatus.FAILED:
            return failed_trial(spec, TrialStatus.FAILED, "simulated failure")
        own = {"trial_number": spec.trial_number, "policy": spec.policy}
        return DEVICE.measure(spec).model_copy(update=own)

    def _now(self) -> float:
        cpu_s = time.process_time()
        self.clock_s += cpu_s - self._cpu_s
        self._load.driver_cpu_s += cpu_s - self._cpu_s
        self._cpu_s = cpu_s
        return self.clock_s


@contextlib.contextmanager
def counted_commits(load: Load) -> Iterator[None]:
    """Counts the transactions of both stores, which go through SQLAlchemy, within the context."""

    def count(connection: object) -> None:
        load.commits += 1

    event.listen(Engine, "commit", count)
    try:
        yield
    finally:
        event.remove(Engine, "commit", count)


def simulate(fleet: Fleet, *, num_trials: int, sampler: str) -> tuple[Load, float, int]:
    """What was counted, the simulated seconds of the study, and the trials that it ran."""
    load = Load()
    with tempfile.TemporaryDirectory() as folder, counted_commits(load), open(os.devnull, "w") as nowhere:
        file = write_search(Path(folder), num_trials=num_trials, sampler=sampler)
        runner = FleetRunner(fleet, load)

        def make_progress(results: Callable[[], StudyResults], elapsed_s: Callable[[], float]) -> PlainProgress:
            return PlainProgress(Console(file=nowhere), results=results)

        outcome = run_study(load_search_file(file), runner, resume=False, make_progress=make_progress)
    return load, runner.clock_s, len(outcome.results.trials)


def report(fleet: Fleet, load: Load, clock_s: float, num_trials: int) -> str:
    """The figures, as Markdown."""
    waited = load.waited_s / (load.waited_s + load.busy_s)
    rows = [
        ("simulated nodes, one device each", f"{fleet.num_nodes:,}"),
        ("median trial", f"{fleet.trial_s:g} s"),
        ("trials", f"{num_trials:,}"),
        ("devices wait between trials", f"{100 * waited:.2f} % of their time"),
        ("most devices at work at once", f"{load.most_busy:,}"),
        ("starting a trial on every device takes", f"{load.starts[fleet.num_nodes] - load.starts[1]:.1f} s")
        if num_trials > fleet.num_nodes
        else ("trials begun", f"{len(load.starts):,}"),
        ("driver's processor time per trial, both threads", f"{1000 * load.driver_cpu_s / num_trials:.1f} ms"),
        ("driver's processor, of one core", f"{100 * load.driver_cpu_s / clock_s:.1f} %"),
        ("transactions per trial, both stores", f"{load.commits / num_trials:.1f}"),
        ("transactions per second", f"{load.commits / clock_s:.1f}"),
    ]
    return "\n".join(["| | |", "| --- | ---: |", *(f"| {name} | {value} |" for name, value in rows)])


def main() -> None:
    """Runs the study and prints its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--trial-s", type=float, default=60.0, help="median length of a trial")
    parser.add_argument("--sampler", default="random", help="a name that search.sampler takes")
    options = parser.parse_args()
    fleet = Fleet(num_nodes=options.nodes, trial_s=options.trial_s)
    print(f"Python {platform.python_version()}, sampler {options.sampler}\n")
    print(report(fleet, *simulate(fleet, num_trials=options.trials, sampler=options.sampler)))


if __name__ == "__main__":
    main()
