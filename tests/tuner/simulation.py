"""Studies of a simulated model on a simulated device: milliseconds per trial, every store real.

Also a program, so that a test can kill a driver: see `_main`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from built_results import build_results
from rich.console import Console

from runners import additive_device
from runners.additive_device import AdditiveDevice
from runners.replay_runner import ReplayRunner
from runners.trial import ModelInspection, TrialResult, TrialSpec, TrialStatus, WorkloadSpec
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from tuner import assemble, cli
from tuner.objective import Objective
from tuner.progress import PlainProgress
from tuner.results import StudyResults
from tuner.search_file.load import load_search_file
from tuner.study.session import Outcome, run_study

NUM_BLOCKS = 2
UNITS = (("attention", "attn"), ("mlp", "mlp"))
SHAPE = ModelShape(1000, (BlockList("h", "Block", NUM_BLOCKS, UNITS),))
WORKLOAD = WorkloadSpec(model_factory="model.py:build")
ENVIRONMENT = {
    "python": "3.11.7",
    "torch": "2.13.0",
    "device_kind": "cpu",
    "device": "a simulated CPU, 2 threads",
    "num_threads": 2,
}
INSPECTION = ModelInspection(
    shape=SHAPE, model_class="Model", tokens_per_sample=16, device_memory_bytes=10**9, environment=ENVIRONMENT
)
MIB = 2**20
STATIC_BYTES = 10 * MIB
#: Per block and sample. Peaks with none and block on both blocks, at micro-batch 2: 26 and 12 MiB, at 1: 18 and 11 MiB.
KEPT_BYTES = {"none": 4 * MIB, "attention": 3 * MIB, "mlp": 2 * MIB, "attention+mlp": MIB, "block": MIB // 2}
#: Share of a step that recomputing every block costs.
COST = {"none": 0.0, "attention": 0.1, "mlp": 0.12, "attention+mlp": 0.22, "block": 0.3}
#: What each further micro-batch costs.
SPLIT_COST = 0.5
REFERENCE_TIME_S = 1.5
MATCH = additive_device.MATCH
DEVICE = AdditiveDevice(
    "a simulated CPU, 2 threads",
    num_blocks=NUM_BLOCKS,
    static_bytes=STATIC_BYTES,
    kept_bytes=KEPT_BYTES,
    cost=COST,
    split_cost=SPLIT_COST,
    reference_step_time_s=REFERENCE_TIME_S,
    tokens_per_sample=16,
)

#: The search that `write_search` writes: none, block, and one block of the two, at two micro-batches: 8 policies.
SEARCH: dict[str, Any] = {
    "study": "simulated",
    "model": {"factory": "model.py:build"},
    "batch": {"global_batch_size": 2, "sequence_length": 16},
    "memory_cap": "20MiB",
    "placement": {"actions": ["none", "block"]},
    "search": {"num_trials": 40, "sampler": "grid"},
}


def write_search(folder: Path, **changes: Any) -> Path:
    """A search file in the folder, whose study goes below ``folder/runs``.

    Args:
        changes: Entries by their path, with ``__`` between the parts; None removes one.
    """
    data: dict[str, Any] = yaml.safe_load(yaml.safe_dump({**SEARCH, "output_dir": str(folder / "runs")}))
    for path, value in changes.items():
        *parents, last = path.split("__")
        section = data
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
        if value is None:
            del section[last]
    (folder / "model.py").write_text("def build():\n    raise AssertionError('nothing is built here')\n")
    file = folder / "search.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


def measure(spec: TrialSpec) -> TrialResult:
    """What the simulated device measures."""
    return DEVICE.measure(spec)


def policy(action: str = "none", micro_batch_size: int = 2, *, last: int = NUM_BLOCKS - 1) -> RecomputePolicy:
    """One action on the first blocks of the simulated model."""
    regions = () if action == "none" else (Region(0, last, action),)
    batch = BatchShape.split(global_batch_size=2, micro_batch_size=micro_batch_size)
    return RecomputePolicy(batch, (BlockListPlacement("h", NUM_BLOCKS, UNITS, regions),)).canonical()


def trial(number: int, action: str = "none", micro_batch_size: int = 2, **changes: Any) -> TrialResult:
    """A measured trial; the changes replace what the simulated device measured."""

    spec = TrialSpec(trial_number=number, policy=policy(action, micro_batch_size), workload=WORKLOAD)
    return measure(spec).model_copy(update=changes)


def failure(number: int, status: TrialStatus, reason: str, action: str = "none", size: int = 2) -> TrialResult:
    return TrialResult(trial_number=number, policy=policy(action, size), status=status, reason=reason)


def results_of(*trials: TrialResult, cap_bytes: int = 20 * MIB, **changes: Any) -> StudyResults:
    """A study with these trials, without having run it."""
    arguments: dict[str, Any] = {
        "study": "simulated",
        "status": "finished",
        "stop_reason": "all trials were run",
        "search": SEARCH,
        "inspection": INSPECTION,
        "environment": ENVIRONMENT,
        "results": trials,
        "baseline_key": policy().key,
        "objective": Objective(memory_cap_bytes=cap_bytes),
    }
    return build_results(**{**arguments, **changes})


def replay(outcome: Callable[[TrialSpec], TrialResult] = measure, **options: Any) -> ReplayRunner:
    return ReplayRunner(outcome, **{"inspection": INSPECTION, **options})


class WaitingRunner(ReplayRunner):
    """Says so on standard output when it comes to a trial, which then takes as long as nobody interrupts."""

    def __init__(self, trial_number: int) -> None:
        super().__init__(measure, inspection=INSPECTION)
        self._trial_number = trial_number
        self._is_waiting = False

    def submit(self, spec: TrialSpec) -> None:
        super().submit(spec)
        if spec.trial_number == self._trial_number:
            self._is_waiting = True
            print("waiting", flush=True)

    def collect(self, timeout_s: float) -> Sequence[TrialResult]:
        if not self._is_waiting:
            return super().collect(timeout_s)
        time.sleep(0.1)
        return ()


def plain_progress(results: Callable[[], StudyResults], elapsed_s: Callable[[], float]) -> PlainProgress:
    return PlainProgress(Console(stderr=True), results=results)


def run(file: Path, *, resume: bool = False, runner: ReplayRunner | None = None) -> Outcome:
    """One session of the study that the file describes."""
    return run_study(load_search_file(file), runner or replay(), resume=resume, make_progress=plain_progress)


def points(results: StudyResults) -> list[tuple[str, bool, bool]]:
    """What a study says of each policy that was measured: its key, whether on the front, whether the best."""
    return sorted(
        (t.policy_key, t.on_front, t.is_best) for t in results.trials if t.status is not TrialStatus.CANCELLED
    )


def _main() -> None:
    """The program `tune` on the simulated device: options of the simulation first, then those of `tune`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--die-in", type=int, help="trial in which the driver is killed")
    parser.add_argument("--wait-in", type=int, help="trial that is waited for until somebody interrupts")
    parser.add_argument("--trial-s", type=float, default=0.0, help="real seconds that a trial takes")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()

    def outcome(spec: TrialSpec) -> TrialResult:
        if spec.trial_number == options.die_in:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(options.trial_s)
        return measure(spec)

    runner = replay(outcome) if options.wait_in is None else WaitingRunner(options.wait_in)
    assemble.ray_runner = lambda config: runner  # type: ignore[assignment,return-value]  # the device is simulated
    sys.argv = ["tune", *options.arguments]
    cli.main()


if __name__ == "__main__":
    _main()
