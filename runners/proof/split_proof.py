"""Whether dividing a batch into micro-batches changes the training; recompute plays no part in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from runners.parallel.first_rank import FirstRankError, on_first_rank, without_group
from runners.parallel.ranks import Ranks
from runners.proof.batch_split import UnsplittableBatchError, split_batch
from runners.proof.compare import Difference, compare_records, first_not_finite, split_tolerance
from runners.proof.limits import ProofLimits
from runners.proof.randomness import HOST_STREAMS, silenced, stream_digests
from runners.proof.setup import ProofSetup
from runners.proof.split_hint import explain_split
from runners.proof.training_record import TrainingRecord, record_training
from runners.trial import Verdict
from search_spaces.policy import RecomputePolicy

#: Step number of the batch that is divided; far from those of the other steps.
_SPLIT_STEP = 1_000_000
#: Which verdict decides where there are several.
_GRAVITY = {Verdict.MATCH: 0, Verdict.UNVERIFIED: 1, Verdict.MISMATCH: 2}


@dataclass(frozen=True)
class SplitFinding:
    """What dividing into micro-batches of one size does to the training; tolerance and reference None if unknown."""

    verdict: Verdict
    difference: Difference
    tolerance: float | None
    reference: str | None
    reason: str | None


class _NothingFitsError(Exception):
    """No part of the batch fits that could be divided, in one precision."""


class SplitProof:
    """Compares one batch, whole and divided, with randomness silenced, and without a policy wherever that fits.

    Of several ranks the first one trains on the whole batch alone, as a single process would; then all train on their
    parts of it. That also proves how they work together. Where no rank can hold the model alone, all of them train on
    the batch in micro-batches of another size instead.

    In single precision wherever the model runs in it: what a division does to the training is the same in every
    precision, but in bfloat16 a gradient summed over the whole batch is off by more than a real fault would show.
    Of several sequence lengths the longest and the shortest are compared.
    """

    def __init__(self, setup: ProofSetup, *, global_batch_size: int) -> None:
        self._setup = setup
        self._global_batch_size = global_batch_size
        self._findings: dict[int, SplitFinding] = {}

    def finding(self, policy: RecomputePolicy, limits: ProofLimits) -> SplitFinding:
        """Says what the division does; runs the comparison once for each size.

        Args:
            policy: Whose division it is. Its placement is in force only where the plain model does not fit.
            limits: What several ranks cannot run.
        """
        size = policy.batch.micro_batch_size
        if limits.split == "none":
            return _no_proof("a rank runs out of memory where the division into micro-batches is compared")
        if size not in self._findings:
            lengths = self._setup.extreme_lengths()
            attempt = _Attempt(replace(policy, compile=None, compile_memory_budget=None), limits)
            findings = [self._find_at(length, attempt) for length in lengths]
            self._findings[size] = max(
                findings, key=lambda found: (_GRAVITY[found.verdict], found.difference.relative_error)
            )
        return self._findings[size]

    def _find_at(self, sequence_length: int | None, attempt: _Attempt) -> SplitFinding:
        if self._setup.is_low_precision and attempt.limits.split == "float32":
            found = self._find_in(self._setup.in_float32(), sequence_length, attempt)
            if not isinstance(found, Exception):
                return found
        found = self._find_in(self._setup, sequence_length, attempt)
        if not isinstance(found, Exception):
            return found
        if isinstance(found, _NothingFitsError):
            return _no_proof(str(found))
        text = " ".join(str(found).split())
        if not isinstance(found, FirstRankError):
            text = f"{type(found).__name__}: {text}"
        return _no_proof(f"the model fails on a divided batch: {text}")

    def _find_in(self, setup: ProofSetup, sequence_length: int | None, attempt: _Attempt) -> SplitFinding | Exception:
        """The finding in one precision, or what the model raised there."""
        ranks = setup.ranks
        for (num_samples, size), placed in product(self._divisions(attempt), attempt.placements):
            try:
                return _compare(setup, sequence_length, num_samples, size, placed, attempt.placed(size, placed, ranks))
            except UnsplittableBatchError as error:
                return _no_proof(str(error))
            except Exception as error:  # the batch is of our making: its failure is not the policy's
                if ranks.size > 1 and not isinstance(error, FirstRankError):
                    raise  # The other ranks wait for this one: nothing that it says could reach them.
                is_out_of_memory = error.is_out_of_memory if isinstance(error, FirstRankError) else None
                if not (setup.device.is_out_of_memory(error) or is_out_of_memory):
                    return error
            setup.device.release_cached_memory()
        if ranks.size == 1 or attempt.size == 1:
            alone = "no rank can hold the model alone, and " if ranks.size > 1 else ""
            return _NothingFitsError(f"{alone}no batch of more samples than one micro-batch fits that could be divided")
        try:
            return _compare_among_ranks(setup, sequence_length, self._global_batch_size, attempt)
        except UnsplittableBatchError as error:
            return _no_proof(str(error))

    def _divisions(self, attempt: _Attempt) -> Iterator[tuple[int, int]]:
        """Samples of a whole batch and of its parts: the policy's own parts first, then parts of one of them."""
        size, (_, num_parts) = attempt.size, self._setup.data_place
        smallest = size * num_parts
        for num_samples in range(self._global_batch_size, max(smallest - 1, size), -smallest):
            if self._global_batch_size % num_samples == 0:
                yield num_samples, size
        if self._setup.ranks.size == 1:
            yield from ((samples, 1) for samples in range(size, 1, -1) if size % samples == 0)


@dataclass(frozen=True)
class _Attempt:
    """What is divided, and with what in force."""

    policy: RecomputePolicy
    limits: ProofLimits

    @property
    def size(self) -> int:
        return self.policy.batch.micro_batch_size

    @property
    def placements(self) -> tuple[RecomputePolicy | None, ...]:
        """What to try, in this order, on a whole batch."""
        return (None, self.policy) if self.policy.recomputes else (None,)

    def placed(self, size: int, placed: RecomputePolicy | None, ranks: Ranks) -> RecomputePolicy | None:
        """What is in force on the parts: of several ranks all have to know that they fit, before any of them tries."""
        if ranks.size == 1:
            return placed
        limit = self.limits.plain_micro_batch
        return None if limit is None or size <= limit else self.policy


def _compare(
    setup: ProofSetup,
    sequence_length: int | None,
    num_samples: int,
    micro_batch_size: int,
    placed_on_whole: RecomputePolicy | None,
    placed_on_parts: RecomputePolicy | None,
) -> SplitFinding:
    whole = setup.batch(num_samples, step=_SPLIT_STEP, part=0, sequence_length=sequence_length)
    example = setup.batch(micro_batch_size, step=_SPLIT_STEP, part=1, sequence_length=sequence_length)
    parts = split_batch(whole, example, num_samples=num_samples, micro_batch_size=micro_batch_size)
    ranks = setup.ranks
    whole_run = on_first_rank(ranks, setup.device, lambda: _silent_run(setup.alone(), [whole], placed_on_whole))
    own, num_parts = setup.data_place
    divided, _ = _silent_run(setup, parts[own::num_parts], placed_on_parts)
    if whole_run is None:
        finding = None
    else:
        undivided, unsilenced = whole_run
        tokens = f" of {sequence_length} tokens" if setup.spec.shorter_sequence_lengths else ""
        finding = _judge(
            setup,
            parts,
            undivided,
            divided,
            unsilenced,
            whole_batch=f"one batch of {num_samples} samples{tokens}",
            division=f"{len(parts)} x {micro_batch_size}"
            + (f" over {ranks.size} ranks ({setup.spec.strategy})" if ranks.size > 1 else "")
            + ("" if placed_on_whole is placed_on_parts is None else ", recomputed since it does not fit otherwise"),
        )
        undivided.close()
    divided.close()
    found = ranks.gather(finding)[0]
    assert found is not None, "the first rank runs the whole batch"
    return found


def _compare_among_ranks(
    setup: ProofSetup, sequence_length: int | None, num_samples: int, attempt: _Attempt
) -> SplitFinding:
    """The same samples by the same ranks, in the policy's micro-batches and one by one.

    One by one, gradients are reduced each time: whole ones that add up may be more than the policy's own step holds.
    """
    ranks = setup.ranks
    own, num_parts = setup.data_place
    whole = setup.batch(num_samples, step=_SPLIT_STEP, part=0, sequence_length=sequence_length)
    runs = []
    for size in (attempt.size, 1):
        example = setup.batch(size, step=_SPLIT_STEP, part=1, sequence_length=sequence_length)
        parts = split_batch(whole, example, num_samples=num_samples, micro_batch_size=size)
        placed = attempt.placed(size, None, ranks)
        runs.append(_silent_run(setup, parts[own::num_parts], placed, reduces_each=size != attempt.size))
    (as_policy, unsilenced), (one_by_one, _) = runs
    finding = None
    if ranks.rank == 0:
        finding = _judged(
            compare_records(one_by_one, as_policy, skip_integer_buffers=True),
            one_by_one,
            unsilenced,
            reference=f"one batch of {num_samples} samples, as {num_samples} x 1 and as {num_samples // attempt.size} "
            f"x {attempt.size}, both over {ranks.size} ranks ({setup.spec.strategy}) since none holds the model alone",
            why=lambda: None,
        )
    for record, _ in runs:
        record.close()
    found = ranks.gather(finding)[0]
    assert found is not None, "the first rank compares"
    return found


def _judge(
    setup: ProofSetup,
    parts: list[dict[str, Any]],
    undivided: TrainingRecord,
    divided: TrainingRecord,
    unsilenced: set[str],
    *,
    whole_batch: str,
    division: str,
) -> SplitFinding:
    return _judged(
        compare_records(undivided, divided, skip_integer_buffers=True),
        undivided,
        unsilenced,
        reference=f"{whole_batch}, whole and as {division}",
        why=lambda: _why_it_differs(setup, parts, undivided.losses[0]),
    )


def _judged(
    difference: Difference,
    expected: TrainingRecord,
    unsilenced: set[str],
    *,
    reference: str,
    why: Callable[[], str | None],
) -> SplitFinding:
    """What a difference means.

    Args:
        why: Asked where there is one: what of the model makes it, if that can be told.
    """
    allowed = split_tolerance(expected.dtype)
    not_finite = first_not_finite(expected)
    reference = f"{reference}, in {str(expected.dtype).removeprefix('torch.')}"
    if not_finite is not None:
        return _no_proof(f"the undivided batch proves nothing: {not_finite}")
    if difference.relative_error <= allowed:
        return SplitFinding(Verdict.MATCH, difference, allowed, reference, None)
    cause = why()
    if cause is None and unsilenced:
        return _no_proof(f"random draws of {', '.join(sorted(unsilenced))} cannot be silenced")
    cause = cause or "the loss is not a mean over samples, or samples of one batch act on each other"
    reason = f"dividing the batch changes the training: {difference.reason}; {cause}"
    return SplitFinding(Verdict.MISMATCH, difference, allowed, reference, reason)


def _silent_run(
    setup: ProofSetup,
    micro_batches: list[dict[str, Any]],
    placed: RecomputePolicy | None,
    *,
    reduces_each: bool = False,
) -> tuple[TrainingRecord, set[str]]:
    """One step's record, and what drew random numbers all the same."""
    rig = setup.fresh_rig(divided_for=placed)
    rig.place(placed)
    rig.step.reduces_each = reduces_each
    setup.seed_alike()
    before = stream_digests(setup.device)
    with silenced() as unsilenced:
        # The same seed before every micro-batch: what the model decides with Python's or NumPy's generator, or with
        # single draws, is then decided alike for the whole batch and for each part of it.
        record = record_training(
            rig.step,
            [micro_batches],
            device=setup.device,
            dtype=setup.lowest_dtype(rig),
            ranks=setup.ranks,
            update=False,
            before_micro_batch=setup.seed_alike,
        )
    drawn_from = {name for name in HOST_STREAMS if record.random_streams[name] != before[name]}
    return record, unsilenced | drawn_from


def _why_it_differs(setup: ProofSetup, parts: list[dict[str, Any]], whole_loss: float) -> str | None:
    rig = setup.alone().fresh_rig()

    def loss_of_part(part: Mapping[str, Any]) -> float:
        setup.seed_alike()
        loss = rig.step.accumulate([part])
        rig.step.drop_gradients()
        return loss

    with silenced(), without_group():
        return explain_split(
            rig.model, parts, whole_loss=whole_loss, loss_of_part=loss_of_part, num_ranks=setup.ranks.size
        )


def _no_proof(reason: str) -> SplitFinding:
    return SplitFinding(Verdict.UNVERIFIED, Difference(math.inf, None, None), None, None, reason)
