"""A model looked at in a process of its own, which needs its memory for no moment and is gone in the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from runners.base import WorkloadError
from runners.local_inspector import LocalInspector
from runners.trial import DryRunSpec, InspectionSpec, WorkloadSpec
from search_spaces.choices import SearchChoices
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import RecomputePolicy
from search_spaces.uniform import uniform_placements

#: Parameters alone would take 65 GB, and no machine of tests has an NPU.
HUGE = WorkloadSpec(
    model_factory="runners.workloads.gpt:gpt",
    model_args={"n_layer": 2, "n_embd": 24_000, "n_head": 8, "vocab_size": 100_000},
    sequence_length=64,
    device="npu",
)


@pytest.fixture
def inspector() -> Iterator[LocalInspector]:
    made = LocalInspector()
    yield made
    made.close()


def test_a_model_that_fits_no_machine_is_looked_at(inspector: LocalInspector) -> None:
    before = set(psutil.Process().children(recursive=True))
    inspection = inspector.inspect(InspectionSpec(workload=HUGE, on_fake_tensors=True))
    assert (inspection.model_class, inspection.device_memory_bytes) == ("GPT", None)
    choices = SearchChoices(
        inspection.shape, global_batch_size=1, micro_batch_sizes=(1,), actions=("none", "attention", "block")
    )
    (child,) = set(psutil.Process().children(recursive=True)) - before
    answer = inspector.dry_run(DryRunSpec(workload=HUGE, choices=choices))
    assert answer.profile is not None, answer.refusal
    assert answer.profile.parameter_bytes == 4 * inspection.shape.num_parameters > 60e9
    assert child.memory_info().rss < 4 * 2**30
    timeline = MemoryTimeline(answer.profile)
    (batch,) = choices.batches
    placements = uniform_placements(choices)
    peaks = [timeline.peak_bytes(RecomputePolicy(batch, placements[name])) for name in ("none", "attention", "block")]
    assert peaks == sorted(peaks, reverse=True)
    # The same process answers again: the model is not built anew.
    again = inspector.dry_run(DryRunSpec(workload=HUGE, policies=(RecomputePolicy(batch, placements["block"]),)))
    assert again.peaks_bytes == pytest.approx((peaks[2],), rel=0.02)
    assert set(psutil.Process().children(recursive=True)) - before == {child}
    inspector.close()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_what_cannot_be_built_is_the_users_to_put_right(inspector: LocalInspector, tmp_path: Path) -> None:
    workload = WorkloadSpec(model_factory="nowhere.py:build", base_dir=str(tmp_path))
    with pytest.raises(WorkloadError, match=r"nowhere\.py"):
        inspector.inspect(InspectionSpec(workload=workload, on_fake_tensors=True))


def test_closing_twice_is_no_harm(inspector: LocalInspector) -> None:
    inspector.close()
    inspector.close()
