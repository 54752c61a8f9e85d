"""The plain model compiled: what compiled policies are compared with, and how far it is from the model as given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch._dynamo
from torch._inductor import config as inductor_config

from runners.proof.compare import Difference, compare_records, recompute_tolerance, split_tolerance
from runners.proof.randomness import stream_digests
from runners.proof.setup import ProofSetup
from runners.proof.training_record import TrainingRecord, record_training
from search_spaces.policy import RecomputePolicy

#: The distance between compiled and plain code is taken this many times as the floor of the tolerance.
_NOISE_FACTOR = 3.0


@dataclass(frozen=True)
class CompiledBaseline:
    """The plain model's run in compiled code.

    Attributes:
        record: With random numbers as compiled code draws them in training. Whatever is recomputed, it draws the same.
        noise: Distance from the same steps of the model as given, where both draw the same numbers.
        difference: Where that distance is largest.
        draws_numbers: The model draws random numbers in training.
    """

    record: TrainingRecord
    difference: Difference
    draws_numbers: bool

    @property
    def noise(self) -> float:
        return self.difference.relative_error

    @property
    def is_faithful(self) -> bool:
        """Compiled and plain code train the same model, but for the order of sums."""
        return self.noise <= split_tolerance(self.record.dtype)

    @property
    def tolerance(self) -> float:
        """Largest error of a compiled policy: the compiler orders sums anew where it rebuilds."""
        dtype = self.record.dtype
        return max(recompute_tolerance(dtype, 0.0), min(_NOISE_FACTOR * self.noise, split_tolerance(dtype)))


def compiled_baseline(
    setup: ProofSetup,
    policy: RecomputePolicy,
    batches: Sequence[Sequence[dict[str, Any]]],
    eager: TrainingRecord,
) -> CompiledBaseline:
    """Runs the model compiled as the policy has it, without recompute, and compares it with the model as given.

    Compiled code draws random numbers its own way. Where the model does, the comparison is with code that draws them
    as plain code does, while the record is of the code that training runs.
    """
    placement = tuple(replace(of_list, regions=()) for of_list in policy.placement)
    plain = replace(policy, placement=placement, compile_memory_budget=None)

    def run() -> TrainingRecord:
        rig = setup.fresh_rig()
        rig.place(plain)
        setup.seed()
        return record_training(rig.step, batches, device=setup.device, dtype=eager.dtype)

    record = run()
    draws_numbers = _draws_numbers(setup, eager)
    difference = compare_records(eager, record)
    if draws_numbers:
        difference = _with_plain_numbers(run, eager)
    return CompiledBaseline(record, difference, draws_numbers)


def _with_plain_numbers(run: Callable[[], TrainingRecord], eager: TrainingRecord) -> Difference:
    with _plain_numbers():
        record = run()
    difference = compare_records(eager, record)
    record.close()
    return difference


@contextmanager
def _plain_numbers() -> Iterator[None]:
    """Within the context code is compiled that draws random numbers as plain code does; none of it is kept."""
    torch._dynamo.reset_code_caches()
    try:
        with inductor_config.patch(fallback_random=True):
            yield
    finally:
        torch._dynamo.reset_code_caches()


def _draws_numbers(setup: ProofSetup, record: TrainingRecord) -> bool:
    setup.seed()
    return stream_digests(setup.device) != record.random_streams
