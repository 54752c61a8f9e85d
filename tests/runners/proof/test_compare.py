from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest
import torch

from runners.proof.compare import (
    compare_records,
    compare_streams,
    first_not_finite,
    recompute_tolerance,
    split_tolerance,
)
from runners.proof.tensor_log import TensorLog
from runners.proof.training_record import TrainingRecord


def log(tensors: Mapping[str, torch.Tensor]) -> TensorLog:
    written = TensorLog()
    written.write(tensors.items())
    return written


def record(
    *,
    losses: Sequence[float] = (1.0,),
    gradients: Mapping[str, torch.Tensor] | None = None,
    buffers: Mapping[str, torch.Tensor] | None = None,
    streams: Mapping[str, str] | None = None,
) -> TrainingRecord:
    buffers = buffers or {}
    return TrainingRecord(
        losses=tuple(losses),
        gradients=log({"0 weight": torch.ones(4)} if gradients is None else gradients),
        buffers=log(buffers),
        integer_buffers=frozenset(name for name, tensor in buffers.items() if not tensor.is_floating_point()),
        random_streams=dict(streams or {"torch CPU": "a"}),
        dtype=torch.float32,
    )


class TestLosses:
    def test_equal_records_do_not_differ(self) -> None:
        difference = compare_records(record(), record())
        assert (difference.relative_error, difference.worst_tensor, difference.reason) == (0.0, None, None)

    def test_error_is_relative_to_the_loss(self) -> None:
        difference = compare_records(record(losses=[1.0, 4.0]), record(losses=[1.0, 4.04]))
        assert difference.relative_error == pytest.approx(0.01)
        assert difference.reason == "the loss of step 2 is 4.04 instead of 4"

    def test_rounding_of_a_loss_that_cancels_is_measured_against_the_gradients(self) -> None:
        gradients = {"0 weight": torch.full((4,), 0.5)}
        difference = compare_records(
            record(losses=[1e-8], gradients=gradients), record(losses=[2e-8], gradients=gradients)
        )
        assert difference.relative_error == pytest.approx(1e-6)

    @pytest.mark.parametrize("loss", [math.nan, math.inf])
    def test_what_is_not_finite_never_counts_as_equal(self, loss: float) -> None:
        difference = compare_records(record(losses=[loss]), record(losses=[loss]))
        assert difference.relative_error == math.inf
        assert difference.worst_tensor == "loss"


class TestGradients:
    def test_error_is_relative_to_the_tensor(self) -> None:
        theirs = torch.ones(4)
        theirs[0] = 1.2
        difference = compare_records(record(), record(gradients={"0 weight": theirs}))
        assert difference.relative_error == pytest.approx(0.1)
        assert difference.reason == "the gradient of weight in step 1 differs by 0.1 of its size"

    def test_noise_in_a_gradient_that_is_nearly_zero_is_measured_against_the_whole(self) -> None:
        weight = torch.full((400,), 1.0)
        ours = record(gradients={"0 weight": weight, "0 key.bias": torch.full((4,), 1e-9)})
        theirs = record(gradients={"0 weight": weight, "0 key.bias": torch.full((4,), -1e-9)})
        assert compare_records(ours, theirs).relative_error < 1e-6

    @pytest.mark.parametrize(
        ("baseline", "candidate", "reason"),
        [
            (["0 a", "0 b"], ["0 a"], "b had a gradient in the baseline and has none now"),
            (["0 a"], ["0 a", "0 b"], "b had no gradient in the baseline and has one now"),
            (["0 a", "1 b"], ["0 a", "0 b"], "b had a gradient in the baseline and has none now"),
        ],
        ids=["vanished", "appeared", "in another step"],
    )
    def test_gradient_on_one_side_only_is_named(self, baseline: list[str], candidate: list[str], reason: str) -> None:
        ours, theirs = (record(gradients={name: torch.ones(2) for name in names}) for names in (baseline, candidate))
        difference = compare_records(ours, theirs)
        assert difference.relative_error == math.inf
        assert difference.reason == reason

    def test_vanished_gradient_is_named_before_the_loss_it_changes(self) -> None:
        ours = record(losses=[1.0, math.nan], gradients={"0 a": torch.ones(2)})
        theirs = record(losses=[1.0, math.nan], gradients={})
        assert compare_records(ours, theirs).worst_tensor == "a"

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_gradient_that_is_not_finite_is_infinitely_wrong(self, value: float) -> None:
        theirs = record(gradients={"0 weight": torch.tensor([1.0, value, 1.0, 1.0])})
        assert compare_records(record(), theirs).relative_error == math.inf

    def test_gradient_where_the_baseline_has_zeros_is_infinitely_wrong(self) -> None:
        ours, theirs = (record(gradients={"0 weight": torch.full((2,), value)}) for value in (0.0, 1e-3))
        assert compare_records(ours, theirs).relative_error == math.inf


class TestBuffers:
    def test_counter_is_told_in_its_own_numbers(self) -> None:
        ours, theirs = (record(buffers={"n": torch.tensor(value)}) for value in (3, 6))
        difference = compare_records(ours, theirs)
        assert (difference.relative_error, difference.reason) == (1.0, "buffer n is 6 instead of 3")

    def test_counters_can_be_left_out(self) -> None:
        ours, theirs = (record(buffers={"n": torch.tensor(value)}) for value in (3, 6))
        assert compare_records(ours, theirs, skip_integer_buffers=True).relative_error == 0.0

    def test_infinite_masks_are_equal_to_themselves(self) -> None:
        mask = {"mask": torch.tensor([0.0, -math.inf]), "flags": torch.tensor([True, False])}
        assert compare_records(record(buffers=mask), record(buffers=mask)).relative_error == 0.0

    def test_buffer_of_another_size_is_infinitely_wrong(self) -> None:
        ours, theirs = (record(buffers={"cache": torch.zeros(size)}) for size in (2, 3))
        difference = compare_records(ours, theirs)
        assert difference.relative_error == math.inf
        assert difference.reason == "buffer cache has 3 elements instead of 2"


class TestTolerance:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
    def test_is_wider_than_rounding_and_narrower_for_recompute_than_for_division(self, dtype: torch.dtype) -> None:
        assert torch.finfo(dtype).eps / 4 < recompute_tolerance(dtype, 0.0) < split_tolerance(dtype) < 0.05

    def test_noise_of_the_baseline_is_its_floor(self) -> None:
        assert recompute_tolerance(torch.float32, 0.01) == pytest.approx(0.03)


class TestStreams:
    def test_stream_that_stands_elsewhere_is_named(self) -> None:
        difference = compare_streams(record(streams={"NumPy": "a"}), record(streams={"NumPy": "b"}))
        assert difference is not None
        assert difference.reason == "the NumPy stream of random numbers stands elsewhere after the steps"

    def test_equal_streams_do_not_differ(self) -> None:
        assert compare_streams(record(), record()) is None


class TestNotFinite:
    def test_first_loss_is_named(self) -> None:
        assert first_not_finite(record(losses=[1.0, math.nan])) == "the loss of step 2 is nan"

    def test_gradient_is_named(self) -> None:
        gradients = {"1 head.weight": torch.tensor([1.0, math.inf])}
        assert first_not_finite(record(gradients=gradients)) == "the gradient of head.weight in step 2 is not finite"

    def test_finite_record_has_none(self) -> None:
        assert first_not_finite(record()) is None
