"""What the driver itself costs per trial: ask, tell, MLflow and results.json of a study whose trials take no time.

Everything but the device is real: Optuna's and MLflow's databases, the study's folder, the loop of `tune run`. Up to
1,000 simulated workers hand back one result at a time, and each that ends makes room for the next trial.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import yaml
from typing_extensions import Self

from runners.replay_runner import ReplayRunner
from runners.trial import (
    MemoryByKind,
    ModelInspection,
    TrialResult,
    TrialSpec,
    TrialStatus,
    Verdict,
    Verification,
)
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.policy import RecomputePolicy
from tuner.config_file import load_search_file
from tuner.objective import Score
from tuner.recording import MlflowListener
from tuner.results import StudyResults
from tuner.sampling.policy_study import PolicyStudy
from tuner.study_session import run_study

MIB = 2**20
NUM_BLOCKS = 48
STEP_S = 1.0
#: Bytes that a block keeps per sample, and the share of a step that recomputing all blocks costs.
KEPT_BYTES = {"none": 40, "attention": 28, "mlp": 20, "attention+mlp": 9, "block": 4, "segment": 2}
COST = {"none": 0.0, "attention": 0.08, "mlp": 0.14, "attention+mlp": 0.22, "block": 0.3, "segment": 0.31}
INSPECTION = ModelInspection(
    shape=ModelShape(10**9, (BlockList("model.layers", "Block", NUM_BLOCKS, (("attention", "attn"), ("mlp", "mlp"))),)),
    model_class="Model",
    tokens_per_sample=1024,
    device_memory_bytes=80 * 2**30,
    environment={"device_kind": "cpu", "device": "simulated", "num_threads": 2},
)
MATCH = Verification(
    verdict=Verdict.MATCH, max_relative_error=0.0, tolerance=1e-5, num_steps=3, reference="the same model"
)


def measure(spec: TrialSpec) -> TrialResult:
    """What the simulated device measures: time and memory that add up over blocks, with a little noise."""
    batch = spec.policy.batch
    placement = spec.policy.placement
    actions = placement[0].actions() if placement else ("none",) * NUM_BLOCKS
    noise = random.Random(spec.trial_number).gauss(1.0, 0.01)
    step_time_s = noise * (
        STEP_S + sum(COST[a] for a in actions) / NUM_BLOCKS + 0.02 * (batch.gradient_accumulation_steps - 1)
    )
    activations = batch.micro_batch_size * sum(KEPT_BYTES[a] for a in actions) * MIB
    peak = 16 * 2**30 + activations
    samples_per_second = batch.global_batch_size / step_time_s
    return TrialResult(
        trial_number=spec.trial_number,
        policy=spec.policy,
        status=TrialStatus.COMPLETED,
        samples_per_second=samples_per_second,
        tokens_per_second=1024 * samples_per_second,
        step_time_s=step_time_s,
        step_time_spread_s=0.005,
        num_steps=20,
        relative_speed=STEP_S / step_time_s,
        relative_speed_spread=0.005,
        reference_step_time_s=STEP_S,
        forward_time_s=0.3,
        backward_time_s=0.6,
        recompute_time_s=step_time_s - STEP_S,
        optimizer_time_s=0.1,
        recomputed_flops_ratio=0.0,
        peak_memory_bytes=peak,
        peak_allocated_bytes=peak,
        memory_bytes=MemoryByKind(
            parameters=4 * 2**30,
            gradients=4 * 2**30,
            optimizer_states=8 * 2**30,
            buffers=0,
            activations=activations,
            temporary=0,
        ),
        verification=MATCH,
        node=f"node-{spec.trial_number % 100}",
        device="simulated",
        worker_pid=spec.trial_number % 1000 + 1,
        started_at="2026-01-02T03:04:05+00:00",
    )


def write_search(folder: Path, *, num_trials: int, sampler: str) -> Path:
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


@dataclass
class Meter:
    """Clocks the seams of the loop; it is the runner's clock and the last of the loop's listeners at once."""

    starts_s: list[float] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    parts_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    loads: list[tuple[int, int, int]] = field(default_factory=list)
    sample_every: int = 1000
    _mark_s: float = 0.0
    _process: psutil.Process = field(default_factory=psutil.Process)

    def begin(self) -> None:
        """The runner hands over: what comes now is the driver's work."""
        self._mark_s = time.perf_counter()

    def __enter__(self) -> Self:
        self._sample()
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sample()

    def started(self, trial_number: int, policy: RecomputePolicy) -> None:
        self.starts_s.append(self._lap())

    def finished(self, result: TrialResult, score: Score) -> None:
        self.ends_s.append(self._lap())
        if len(self.ends_s) % self.sample_every == 0:
            self._sample()
            self.begin()

    def _lap(self) -> float:
        now = time.perf_counter()
        lap_s, self._mark_s = now - self._mark_s, now
        return lap_s

    def _sample(self) -> None:
        self.loads.append((len(self.ends_s), self._process.memory_info().rss, self._process.num_fds()))


class ClockedRunner(ReplayRunner):
    """Hands over to the meter after its own work, which is not the driver's."""

    def __init__(self, meter: Meter, *, capacity: int) -> None:
        latency = lambda spec: random.Random(spec.trial_number).uniform(1.0, 2.0)  # noqa: E731
        super().__init__(measure, capacity=capacity, latency_s=latency, inspection=INSPECTION)
        self._meter = meter

    def collect(self, timeout_s: float) -> Sequence[TrialResult]:
        results = super().collect(timeout_s)
        self._meter.begin()
        return results


@contextlib.contextmanager
def clocked(meter: Meter) -> Iterator[None]:
    """Also takes the time of the parts, each a public method."""
    methods = {
        "ask": (PolicyStudy, "ask"),
        "tell": (PolicyStudy, "tell"),
        "mlflow start": (MlflowListener, "started"),
        "mlflow end": (MlflowListener, "finished"),
    }
    before = {name: getattr(owner, method) for name, (owner, method) in methods.items()}

    def clock(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                meter.parts_s[name].append(time.perf_counter() - start)

        return timed

    for name, (owner, method) in methods.items():
        setattr(owner, method, clock(name, before[name]))
    try:
        yield
    finally:
        for name, (owner, method) in methods.items():
            setattr(owner, method, before[name])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--sampler", default="random")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True, parents=True)
    file = write_search(folder, num_trials=options.trials, sampler=options.sampler)
    meter = Meter(sample_every=max(1, options.trials // 5))
    with clocked(meter):
        t0 = time.perf_counter()
        outcome = run_study(
            load_search_file(file),
            ClockedRunner(meter, capacity=options.workers),
            resume=options.resume,
            make_progress=lambda results, elapsed_s: meter,
        )
        total = time.perf_counter() - t0
    print(outcome.results.status, outcome.results.stop_reason, len(outcome.results.trials), f"wall {total:.1f} s")
    def show(name, xs):
        if xs:
            xs = sorted(xs)
            print(f"{name:20s} n={len(xs):5d} median {1000*statistics.median(xs):8.2f} p95 {1000*xs[int(.95*len(xs))]:8.2f} mean {1000*statistics.mean(xs):8.2f} ms")
    for name, xs in meter.parts_s.items():
        show(name, xs)
        show(name + " 2nd half", xs[len(xs) // 2 :])
    show("starts", meter.starts_s)
    show("ends", meter.ends_s)
    for n, rss, fds in meter.loads:
        print(n, f"{rss / MIB:.1f} MiB", fds)


if __name__ == "__main__":
    main()
