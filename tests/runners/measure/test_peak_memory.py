"""The peak that a trial reports on CPU: against arithmetic, and against a count from below torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runners.trial import MemoryByKind, TrialStatus
from search_spaces.policy import Region

HERE = Path(__file__).parent
MIB = 2**20
#: Scalars, step counters, and 5,056 bytes of random generator's state for each region that waits for backward.
SMALL_CHANGE = 5056 * 4 + 512
SIZES = {
    "num_blocks": 4,
    "parameters": 1 * MIB,
    "buffers": 2 * MIB,
    "kept": 8 * MIB,
    "forward_scratch": 4 * MIB,
    "backward_scratch": 3 * MIB,
}
#: One mebibyte of input per sample at a global batch of two, AdamW's two states, and the buffer.
STATIC = 1 * MIB + 2 * MIB + 2 * MIB
INPUTS = 2 * MIB

Trials = Any


def ledger(trials: Trials, **sizes: int) -> Any:
    batch = "ledger.py:mebibyte_per_sample"
    return trials("ledger.py:ledger", args={**SIZES, **sizes}, batch=batch, global_batch_size=2, num_blocks=4)


def measure(trials: Trials, regions: Any, *, micro: int = 2, **sizes: int) -> MemoryByKind:
    result = ledger(trials, **sizes).run(regions, micro=micro)
    assert (result.status, result.reason) == (TrialStatus.COMPLETED, None)
    assert result.memory_bytes is not None
    kinds = result.memory_bytes
    assert sum(kinds.model_dump().values()) == result.peak_memory_bytes == result.peak_allocated_bytes
    assert result.peak_reserved_bytes is None
    return kinds


def assert_about(measured: int, expected: int) -> None:
    assert expected <= measured <= expected + SMALL_CHANGE


@pytest.mark.parametrize(
    ("regions", "blocks_kept"),
    [
        ("none", 4),
        ("block", 1),
        ((Region(0, 3, "segment", 2),), 2),
        ((Region(0, 3, "segment", 3),), 3),
        ((Region(0, 3, "segment", 4),), 4),
        ((Region(0, 1, "block"),), 2),
        ((Region(2, 3, "block"),), 3),
    ],
    ids=["none", "block", "pairs", "three and one", "one segment saves nothing", "first half", "second half"],
)
def test_peak_is_the_arithmetic_of_what_is_kept_and_taken(trials: Trials, regions: Any, blocks_kept: int) -> None:
    kinds = measure(trials, regions)
    assert kinds.parameters == 1 * MIB
    assert kinds.buffers == 2 * MIB
    assert_about(kinds.optimizer_states, 2 * MIB)
    assert_about(kinds.activations, blocks_kept * 8 * MIB + INPUTS)
    assert_about(kinds.temporary, 3 * MIB)
    assert kinds.gradients == 0


def test_gradients_of_the_first_micro_batch_are_alive_at_the_worst_moment_of_the_second(trials: Trials) -> None:
    kinds = measure(trials, "none", micro=1)
    assert kinds.gradients == 1 * MIB
    assert_about(kinds.activations, 4 * 8 * MIB + INPUTS)


def test_forward_can_be_the_worst_moment(trials: Trials) -> None:
    kinds = measure(trials, "none", forward_scratch=20 * MIB)
    assert_about(kinds.temporary, 20 * MIB)
    assert_about(kinds.activations, 3 * 8 * MIB + INPUTS)


def test_update_can_be_the_worst_moment(trials: Trials) -> None:
    kinds = measure(trials, "none", kept=1024, forward_scratch=1, backward_scratch=1, parameters=16 * MIB)
    assert kinds.gradients == 16 * MIB
    assert_about(kinds.optimizer_states, 32 * MIB)
    # AdamW takes two more tensors of the parameter's size for its denominator: the root and the corrected root.
    assert_about(kinds.temporary, 32 * MIB)
    assert_about(kinds.activations, INPUTS)


def test_a_trial_does_not_inherit_the_peak_of_the_one_before(trials: Trials) -> None:
    from runners.worker import TrialWorker

    maker = ledger(trials)
    small, large = maker.spec("block", micro=1), maker.spec("none", micro=2)
    worker = TrialWorker()
    peaks = [worker.run(spec).peak_memory_bytes for spec in (small, large, small, large)]
    alone = [TrialWorker().run(spec).peak_memory_bytes for spec in (large, small)]
    assert peaks == [alone[1], alone[0], alone[1], alone[0]]
    assert alone[0] > alone[1]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    compiler = shutil.which("g++")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("the allocation probe needs Linux and g++")
    probe = tmp_path_factory.mktemp("probe") / "allocation_probe.so"
    source = str(HERE / "allocation_probe.cpp")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-std=c++17", source, "-o", str(probe), "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, str(HERE / "peak_against_probe.py")],
        env={**os.environ, "LD_PRELOAD": str(probe)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["name"]: row for row in rows}


def test_peak_is_that_of_a_count_below_torch_to_the_byte(counted: dict[str, dict[str, Any]]) -> None:
    assert len(counted) > 15
    wrong = {name: row for name, row in counted.items() if row["measured"] != row["counted"]}
    assert wrong == {}


def test_kinds_are_parts_of_the_peak(counted: dict[str, dict[str, Any]]) -> None:
    assert all(min(row["kinds"].values()) >= 0 for row in counted.values())
    assert all(sum(row["kinds"].values()) == row["measured"] for row in counted.values())


def test_nothing_is_left_after_a_trial(counted: dict[str, dict[str, Any]]) -> None:
    assert {name: row["left"] for name, row in counted.items() if row["left"]} == {}
