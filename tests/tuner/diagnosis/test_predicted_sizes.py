from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from simulated_profile import DRY_RUN, PROFILE
from simulation import SHAPE

from runners.diagnosis.records import PeakSplit
from runners.trial import DryRunResult, MemoryByKind
from search_spaces.choices import SearchChoices
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import RecomputePolicy
from tuner.diagnosis.least_memory import least_memory
from tuner.diagnosis.predicted_sizes import SizePeaks, difference_text, largest_sizes_text, predicted_sizes

MIB = 2**20
SIZES = (
    SizePeaks(8, 80 * MIB, 40 * MIB),
    SizePeaks(4, 40 * MIB, 20 * MIB),
    SizePeaks(2, 20 * MIB, 10 * MIB),
    SizePeaks(1, 10 * MIB, 5 * MIB),
)


def measured(size: int, peak: float) -> PeakSplit:
    num_bytes = round(peak * MIB)
    kinds = {**dict.fromkeys(MemoryByKind.model_fields, 0), "activations": num_bytes}
    return PeakSplit(
        policy_summary="none",
        micro_batch_size=size,
        gradient_accumulation_steps=8 // size,
        peak_memory_bytes=num_bytes,
        memory_bytes=MemoryByKind(**kinds),
        unseen_bytes=0,
        places=(),
        held=(),
    )


def largest(cap: float, *, plain: PeakSplit | None = None, floors: tuple[PeakSplit, ...] | None = None) -> list[str]:
    floors = (measured(8, 40), measured(1, 5)) if floors is None else floors
    return list(largest_sizes_text(plain or measured(8, 80), floors, SIZES, round(cap * MIB)))


class TestLargestSizes:
    @pytest.mark.parametrize(
        "cap, fits, without",
        [(21, "4", "without recompute 2"), (12, "2", "without recompute 1"), (9, "1", "without recompute none fits")],
    )
    def test_names_both(self, cap: int, fits: str, without: str) -> None:
        text = f"The largest micro-batch at which some placement fits is {fits}, {without} (predicted where it was not "
        assert largest(cap) == [text + "measured)."]

    def test_predictions_are_scaled_by_what_was_measured(self) -> None:
        (text,) = largest(21, plain=measured(8, 88), floors=(measured(8, 44),))
        assert "some placement fits is 2, without recompute 1 " in text

    def test_a_measured_peak_stands(self) -> None:
        (text,) = largest(6, floors=(measured(8, 44), measured(1, 6)))
        assert "some placement fits is 1," in text

    def test_a_larger_one_than_the_plain_step_is_news(self) -> None:
        (text,) = largest(41, plain=measured(4, 40), floors=(measured(4, 20),))
        assert "some placement fits is 8, without recompute 4 " in text

    @pytest.mark.parametrize("cap", [100, 4], ids=["all fits", "nothing fits"])
    def test_nothing_to_add(self, cap: int) -> None:
        assert largest(cap) == []


class TestDifference:
    def test_too_low_a_prediction_is_said_to_be_so(self) -> None:
        assert list(difference_text(measured(8, 100), SIZES)) == [
            "Predicted peaks of this model are 20.0% below the measured one (plain step: 80.0 MiB predicted, 100.0 MiB "
            "measured). A search corrects its predictions by what it measures."
        ]

    def test_too_high_a_prediction_is_said_to_be_so(self) -> None:
        (text,) = difference_text(measured(4, 32), SIZES)
        assert text.startswith("Predicted peaks of this model are 25.0% above the measured one (plain step: 40.0 MiB")

    def test_little_is_not_worth_a_line(self) -> None:
        assert list(difference_text(measured(8, 80.7), SIZES)) == []


REFUSED = DryRunResult(profile=replace(PROFILE, refusal="its blocks hand tensors across"))
NO_DRY_RUN = DryRunResult(failure="it asks for values")
BOTH_SIZES = [SizePeaks(2, 26 * MIB, 12 * MIB), SizePeaks(1, 18 * MIB, 11 * MIB)]


@pytest.mark.parametrize(
    "dry_run, succeeds, expected",
    [(DRY_RUN, False, BOTH_SIZES), (REFUSED, True, BOTH_SIZES), (REFUSED, False, []), (NO_DRY_RUN, False, [])],
    ids=["added up", "one by one", "dry runs fail", "no dry run"],
)
def test_every_size_that_can_be_predicted(dry_run: DryRunResult, succeeds: bool, expected: list[SizePeaks]) -> None:
    choices = SearchChoices(SHAPE, 2, (1, 2), ("none", "block"))
    timeline = MemoryTimeline(PROFILE)

    def dry_run_peaks(policies: Sequence[RecomputePolicy]) -> Sequence[int]:
        return [timeline.peak_bytes(policy) for policy in policies] if succeeds else []

    floors = least_memory(choices, dry_run, choices.batches, cap_bytes=20 * MIB, dry_run_peaks=dry_run_peaks)
    assert list(predicted_sizes(choices, dry_run, floors, dry_run_peaks=dry_run_peaks)) == expected
