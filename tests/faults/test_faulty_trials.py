"""Whole studies on a real Ray cluster whose trials crash, hang or take too much: each is a result, nothing stays."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from real_study import EXIT_DONE, RealStudy, left_running, running
from study_state import state_of

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1800)]

#: Enough for a process to start and load torch on a machine that does other things as well.
TRIAL_TIMEOUT_S = 90
#: By micro-batch size: what befalls a trial, and what is said of it. What does not fit is the smallest, and half of the
#: batch is sound, since the proof then tries the plain model with fewer samples, and divides a part of the batch.
FAULTS = {
    6: ("segfault", "FAILED", "worker died (signal 11, SIGSEGV)"),
    10: ("exit", "FAILED", "worker died (exit code 7)"),
    12: ("deadlock with child", "TIMED_OUT", f"not finished after {TRIAL_TIMEOUT_S} s; stopped"),
    5: ("terabytes", "OUT_OF_MEMORY", "can't allocate memory"),
    15: ("kill", "FAILED", "worker died (signal 9, SIGKILL, likely memory)"),
    20: ("raise", "FAILED", "RuntimeError: this size is not for me; at faulty_model.py:"),
}
#: With four samples the model is looked at before any trial; the largest is the baseline.
SOUND = (4, 30, 60)


def test_each_fault_is_a_result_and_the_next_trial_runs(tmp_path: Path) -> None:
    before = running()
    study = RealStudy(tmp_path / "study")
    study.write(
        model={"args": {"faults": {str(size): fault for size, (fault, _, _) in FAULTS.items()}}},
        batch={"global_batch_size": max(SOUND), "micro_batch_sizes": sorted([*SOUND, *FAULTS])},
        placement={"actions": ["none"]},
        runner={"trial_timeout": f"{TRIAL_TIMEOUT_S}s"},
    )
    assert study.run() == EXIT_DONE, study.logged
    assert left_running(before) == []
    found = {trial["micro_batch_size"]: (trial["status"], trial["reason"]) for trial in study.results["trials"]}
    assert {size: status for size, (status, _) in found.items()} == {
        **dict.fromkeys(SOUND, "COMPLETED"),
        **{size: status for size, (_, status, _) in FAULTS.items()},
    }
    for size, (_, _, reason) in FAULTS.items():
        assert reason in found[size][1], found[size]
        assert "\n" not in found[size][1]
    assert "Traceback" not in study.logged
    state_of(study.folder)


def test_a_trial_that_fills_the_node_is_stopped_by_rays_guard(tmp_path: Path) -> None:
    before = running()
    memory = psutil.virtual_memory()
    room_bytes = min(4 * 2**30, memory.available // 3)
    study = RealStudy(tmp_path / "study")
    study.write(
        model={"args": {"faults": {"4": "fill"}}}, batch={"global_batch_size": 8}, placement={"actions": ["none"]}
    )
    threshold = (memory.total - memory.available + room_bytes) / memory.total
    guard = {"RAY_memory_usage_threshold": f"{threshold:.3f}"}
    assert study.run(environment=guard) == EXIT_DONE, study.logged
    assert left_running(before) == []
    found = {trial["micro_batch_size"]: (trial["status"], trial["reason"]) for trial in study.results["trials"]}
    assert found[4] == ("OUT_OF_MEMORY", "the node ran out of memory and Ray stopped the worker")
    assert {found[size][0] for size in (2, 8)} == {"COMPLETED"}
    state_of(study.folder)
