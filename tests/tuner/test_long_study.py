"""What a driver holds on to as trials come and go: each trial once, and no files."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import optuna
import psutil
import pytest
from simulation import INSPECTION, UNITS, measure, replay, run

from mlflow_config.stored_run import StoredRun
from runners.trial import TrialResult, TrialSpec
from search_spaces.model_shape import BlockList, ModelShape
from tuner.results import TrialRecord

NUM_WORKERS = 20
NUM_TRIALS = 160
#: After these many have ended, all workers are busy and the beginning is over.
EARLY, LATE = 40, 120
KEPT_ONCE = (optuna.trial.FrozenTrial, TrialResult, TrialRecord, StoredRun)
DEEP = INSPECTION.model_copy(update={"shape": ModelShape(1000, (BlockList("h", "Block", 24, UNITS),))})


@pytest.mark.slow
def test_a_driver_keeps_each_trial_once_and_opens_nothing(write_search: Callable[..., Path], tmp_path: Path) -> None:
    process = psutil.Process(os.getpid())
    counts: dict[int, Counter[type]] = {}
    descriptors: dict[int, int] = {}
    num_ended = 0

    def outcome(spec: TrialSpec) -> TrialResult:
        nonlocal num_ended
        if num_ended in (EARLY, LATE):
            gc.collect()
            counts[num_ended] = Counter(map(type, gc.get_objects()))
            descriptors[num_ended] = process.num_fds()
        num_ended += 1
        return measure(spec)

    actions = ["none", "attention", "mlp", "attention+mlp", "block"]
    file = write_search(search__num_trials=NUM_TRIALS, search__sampler="random", placement__actions=actions)
    runner = replay(
        outcome, capacity=NUM_WORKERS, inspection=DEEP, latency_s=lambda spec: 1.0 + spec.trial_number % 7 / 10
    )
    results = run(file, runner=runner).results
    assert len(results.trials) == NUM_TRIALS

    grown = {kind: counts[LATE][kind] - counts[EARLY][kind] for kind in (*KEPT_ONCE, optuna.Trial)}
    for kind in KEPT_ONCE:
        assert 0 < grown[kind] <= LATE - EARLY + NUM_WORKERS, kind
    assert grown[optuna.Trial] <= NUM_WORKERS, "of those in flight only"
    assert descriptors[LATE] == descriptors[EARLY]
    assert [opened.path for opened in process.open_files() if str(tmp_path / "runs" / "simulated") in opened.path] == []
