"""What the driver itself costs per trial: ask, tell, results.json and MLflow of a study whose trials take no time.

Everything but the device is real: Optuna's and MLflow's databases, the study's folder, the loop of `tune run`. Up to
1,000 simulated workers hand back one result at a time, at the pace of real ones, and each that ends makes room for the
next trial.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import yaml
from line_chart import Line, Panel, draw
from rich.console import Console
from typing_extensions import Self

from mlflow_config.recorder import StudyRecorder
from runners.additive_device import AdditiveDevice
from runners.replay_runner import ReplayRunner
from runners.trial import ModelInspection, TrialResult, TrialSpec
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.policy import RecomputePolicy
from tuner.objective import Score
from tuner.progress import PlainProgress
from tuner.results import StudyResults
from tuner.results_ledger import ResultsLedger
from tuner.sampling.policy_study import PolicyStudy
from tuner.search import SearchListener
from tuner.search_file.load import load_search_file
from tuner.study.session import Outcome, run_study

MIB = 2**20
NUM_BLOCKS = 48
#: Trials whose times make one point of the figure.
WINDOW = 100
KEPT_MIB = {"none": 40, "attention": 28, "mlp": 20, "attention+mlp": 9, "block": 4, "segment": 2}
DEVICE = AdditiveDevice(
    "simulated",
    num_blocks=NUM_BLOCKS,
    static_bytes=16 * 2**30,
    kept_bytes={action: size * MIB for action, size in KEPT_MIB.items()},
    cost={"none": 0.0, "attention": 0.08, "mlp": 0.14, "attention+mlp": 0.22, "block": 0.3, "segment": 0.31},
    split_cost=0.02,
    reference_step_time_s=1.0,
    tokens_per_sample=1024,
    noise=0.01,
)
INSPECTION = ModelInspection(
    shape=ModelShape(10**9, (BlockList("model.layers", "Block", NUM_BLOCKS, (("attention", "attn"), ("mlp", "mlp"))),)),
    model_class="Model",
    tokens_per_sample=1024,
    device_memory_bytes=80 * 2**30,
    environment={"device_kind": "cpu", "device": "simulated", "num_threads": 2},
)


@dataclass(frozen=True)
class Lap:
    """What passed between two moments: on the wall's clock, and of the thread's own time on the processor."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Load:
    """What the process holds on to after a number of trials."""

    num_trials: int
    resident_bytes: int
    num_descriptors: int


class Stopwatch:
    """Laps of the thread that asks."""

    def __init__(self) -> None:
        self._start = time.perf_counter(), time.thread_time()

    def lap(self) -> Lap:
        """What passed since the last lap."""
        before, self._start = self._start, (time.perf_counter(), time.thread_time())
        return Lap(self._start[0] - before[0], self._start[1] - before[1])


@dataclass
class Meter:
    """The last of the loop's listeners: shows each trial as `tune run` does, and takes its time.

    Attributes:
        starts: Ask, hand over to the runner; one per trial.
        ends: Score, tell, results.json, the line on the screen; one per trial.
        parts: Time in single methods of the above, by name.
    """

    sample_every: int
    screen: SearchListener | None = None
    starts: list[Lap] = field(default_factory=list)
    ends: list[Lap] = field(default_factory=list)
    parts: dict[str, list[Lap]] = field(default_factory=dict)
    loads: list[Load] = field(default_factory=list)
    _stopwatch: Stopwatch = field(default_factory=Stopwatch)
    _process: psutil.Process = field(default_factory=psutil.Process)

    def begin(self) -> None:
        """What comes from now on is the driver's work."""
        self._stopwatch.lap()

    def lap(self) -> Lap:
        """What passed since the last trial began or ended."""
        return self._stopwatch.lap()

    def __enter__(self) -> Self:
        self._sample()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The loop is over."""

    def started(self, trial_number: int, policy: RecomputePolicy) -> None:
        if self.screen is not None:
            self.screen.started(trial_number, policy)
        self.starts.append(self._stopwatch.lap())

    def finished(self, result: TrialResult, score: Score) -> None:
        if self.screen is not None:
            self.screen.finished(result, score)
        self.ends.append(self._stopwatch.lap())
        if len(self.ends) % self.sample_every == 0:
            self._sample()

    def _sample(self) -> None:
        self.loads.append(Load(len(self.ends), self._process.memory_info().rss, self._process.num_fds()))
        self.begin()


class ClockedRunner(ReplayRunner):
    """Simulated workers whose trials take 1 to 2 simulated seconds; what the simulation itself takes is not counted.

    Args:
        interval_s: Real time from one result to the next, unless the driver takes longer.
    """

    def __init__(self, meter: Meter, *, capacity: int, interval_s: float) -> None:
        super().__init__(DEVICE.measure, capacity=capacity, latency_s=_latency_s, inspection=INSPECTION)
        self._meter = meter
        self._interval_s = interval_s
        self._next_at = 0.0

    def collect(self, timeout_s: float) -> Sequence[TrialResult]:
        results = super().collect(timeout_s)
        now = time.monotonic()
        time.sleep(max(0.0, self._next_at - now))
        self._next_at = max(self._next_at, now) + self._interval_s
        self._meter.begin()
        return results


def _latency_s(spec: TrialSpec) -> float:
    return random.Random(spec.trial_number).uniform(1.0, 2.0)


#: What is shown of a trial's time besides the whole: in the search's own thread, and in the one beside it.
PARTS: dict[str, tuple[type, str]] = {
    "ask": (PolicyStudy, "ask"),
    "tell": (PolicyStudy, "tell"),
    "results": (ResultsLedger, "add"),
}
BESIDE: dict[str, tuple[type, str]] = {
    "MLflow, start": (StudyRecorder, "start_trial"),
    "MLflow, end": (StudyRecorder, "record_trial"),
}


@contextlib.contextmanager
def clocked(parts: dict[str, list[Lap]]) -> Iterator[None]:
    """Takes the time of each of `PARTS` and of what is `BESIDE` them within the context."""
    with ExitStack() as stack:
        for name, (owner, method) in (PARTS | BESIDE).items():
            original = getattr(owner, method)
            setattr(owner, method, _clock(original, parts.setdefault(name, [])))
            stack.callback(setattr, owner, method, original)
        yield


def _clock(function: Callable[..., Any], laps: list[Lap]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        stopwatch = Stopwatch()
        try:
            return function(*args, **kwargs)
        finally:
            laps.append(stopwatch.lap())

    return timed


def write_search(folder: Path, *, num_trials: int, sampler: str) -> Path:
    """The search file of a study in the folder."""
    data = {
        "study": "driver",
        "model": {"factory": "model.py:build"},
        "batch": {"global_batch_size": 64, "sequence_length": 1024},
        "memory_cap": "40GiB",
        "placement": {"actions": ["none", "attention", "mlp", "attention+mlp", "block", "segment"]},
        "search": {"num_trials": num_trials, "sampler": sampler, "time_limit": "24h"},
        "output_dir": str(folder / "runs"),
    }
    (folder / "model.py").write_text("def build():\n    raise AssertionError('nothing is built here')\n")
    file = folder / "search.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


def run(file: Path, meter: Meter, *, num_workers: int, interval_s: float, resume: bool) -> Outcome:
    """One session of the study."""
    runner = ClockedRunner(meter, capacity=num_workers, interval_s=interval_s)
    with clocked(meter.parts), open(os.devnull, "w") as nowhere:

        def make_progress(results: Callable[[], StudyResults], elapsed_s: Callable[[], float]) -> Meter:
            meter.screen = PlainProgress(Console(file=nowhere), results=results)
            return meter

        return run_study(load_search_file(file), runner, resume=resume, make_progress=make_progress)


def per_trial(meter: Meter) -> list[Lap]:
    """What the driver did for each trial: the start and the end of one."""
    pairs = zip(meter.starts, meter.ends, strict=True)
    return [Lap(start.wall_s + end.wall_s, start.cpu_s + end.cpu_s) for start, end in pairs]


def times_table(meter: Meter) -> str:
    """Milliseconds per trial, as Markdown."""
    lines = [
        "| ms per trial | median | 95 % of trials | median, processor time |",
        "| --- | ---: | ---: | ---: |",
        *(_row(name, meter.parts[name]) for name in PARTS),
        _row("all that the next trial waits for", per_trial(meter)),
        *(_row(f"beside it: {name}", meter.parts[name]) for name in BESIDE),
    ]
    return "\n".join(lines)


def _row(name: str, laps: Sequence[Lap]) -> str:
    walls_ms = sorted(1000 * lap.wall_s for lap in laps)
    cpu_ms = statistics.median(1000 * lap.cpu_s for lap in laps)
    slow_ms = walls_ms[int(0.95 * (len(walls_ms) - 1))]
    return f"| {name} | {statistics.median(walls_ms):.1f} | {slow_ms:.1f} | {cpu_ms:.1f} |"


def loads_table(loads: Sequence[Load]) -> str:
    """Memory and descriptors after some numbers of trials, as Markdown."""
    return "\n".join(
        [
            "| trials | resident memory, MiB | open file descriptors |",
            "| ---: | ---: | ---: |",
            *(f"| {load.num_trials:,} | {load.resident_bytes / MIB:.0f} | {load.num_descriptors} |" for load in loads),
        ]
    )


def figure(meter: Meter) -> str:
    """Time per trial and memory over the study, as SVG."""
    laps = per_trial(meter)
    windows = range(WINDOW, len(laps) + 1, WINDOW)

    def medians_ms(values_s: list[float]) -> tuple[float, ...]:
        return tuple(1000 * statistics.median(values_s[end - WINDOW : end]) for end in windows)

    times = Panel(
        f"driver's work per trial, ms (median of {WINDOW} trials)",
        (
            Line("on the clock", tuple(windows), medians_ms([lap.wall_s for lap in laps])),
            Line("processor time", tuple(windows), medians_ms([lap.cpu_s for lap in laps])),
        ),
    )
    numbers = tuple(load.num_trials for load in meter.loads)
    memory = Panel(
        "driver's resident memory, MiB",
        (Line("resident memory", numbers, tuple(load.resident_bytes / MIB for load in meter.loads)),),
    )
    return draw([times, memory], x_title="trials that ended")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=1000, help="simulated ones, each with a trial in flight")
    parser.add_argument(
        "--interval-ms",
        type=float,
        default=60.0,
        help="from one result to the next; 60 is 1,000 trials a minute",
    )
    parser.add_argument("--sampler", default="random", help="a name that search.sampler takes")
    parser.add_argument("--figure", type=Path, help="SVG file to write")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        file = write_search(Path(folder), num_trials=options.trials, sampler=options.sampler)
        meter = Meter(max(1, options.trials // 5))
        before_s = time.process_time()
        interval_s = options.interval_ms / 1000
        outcome = run(file, meter, num_workers=options.workers, interval_s=interval_s, resume=False)
        end = meter.lap()
        cpu_s = time.process_time() - before_s
        watch = Stopwatch()
        run(file, Meter(options.trials), num_workers=options.workers, interval_s=interval_s, resume=True)
        resume = watch.lap()
    print(
        f"{len(outcome.results.trials):,} trials, {options.workers:,} workers, sampler {options.sampler}; Python "
        f"{platform.python_version()}, {os.cpu_count()} processors, {os.getloadavg()[0]:.1f} of them busy\n"
    )
    print(times_table(meter), loads_table(meter.loads), sep="\n\n")
    print(
        f"\nprocessor time of the whole process: {1000 * cpu_s / options.trials:.1f} ms per trial\n"
        f"from the end of the last trial until all is in MLflow: {end.wall_s:.1f} s"
    )
    print(f"resuming the finished study and closing it again: {resume.wall_s:.1f} s")
    if options.figure is not None:
        options.figure.write_text(figure(meter))


if __name__ == "__main__":
    main()
