"""Whether dividing a batch into micro-batches changes the training; recompute plays no part in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runners.parallel.first_rank import FirstRankError, on_first_rank
from runners.proof.batch_split import UnsplittableBatchError, split_batch
from runners.proof.compare import Difference, compare_records, first_not_finite, split_tolerance
from runners.proof.randomness import HOST_STREAMS, silenced, stream_digests
from runners.proof.setup import ProofSetup
from runners.proof.split_hint import explain_split
from runners.proof.training_record import TrainingRecord, record_training
from runners.trial import Verdict

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


class SplitProof:
    """Compares one batch, whole and divided, without a policy and with randomness silenced.

    Of several ranks the first one trains on the whole batch alone, as a single process would; then all train on their
    parts of it. That also proves how they work together.

    In single precision wherever the model runs in it: what a division does to the training is the same in every
    precision, but in bfloat16 a gradient summed over the whole batch is off by more than a real fault would show.
    Of several sequence lengths the longest and the shortest are compared.
    """

    def __init__(self, setup: ProofSetup, *, global_batch_size: int) -> None:
        self._setup = setup
        self._global_batch_size = global_batch_size
        self._findings: dict[int, SplitFinding] = {}

    def finding(self, micro_batch_size: int) -> SplitFinding:
        """Says what the division does; runs the comparison once for each size."""
        if micro_batch_size not in self._findings:
            self._findings[micro_batch_size] = self._find(micro_batch_size)
        return self._findings[micro_batch_size]

    def _find(self, micro_batch_size: int) -> SplitFinding:
        findings = [self._find_at(length, micro_batch_size) for length in self._setup.extreme_lengths()]
        return max(findings, key=lambda found: (_GRAVITY[found.verdict], found.difference.relative_error))

    def _find_at(self, sequence_length: int | None, micro_batch_size: int) -> SplitFinding:
        if self._setup.is_low_precision:
            found = self._find_in(self._setup.in_float32(), sequence_length, micro_batch_size)
            if not isinstance(found, Exception):
                return found
        found = self._find_in(self._setup, sequence_length, micro_batch_size)
        if not isinstance(found, Exception):
            return found
        text = " ".join(str(found).split())
        if not isinstance(found, FirstRankError):
            text = f"{type(found).__name__}: {text}"
        return _no_proof(f"the model fails on a divided batch: {text}")

    def _find_in(
        self, setup: ProofSetup, sequence_length: int | None, micro_batch_size: int
    ) -> SplitFinding | Exception:
        """The finding in one precision, or what the model raised there."""
        ranks = setup.ranks
        _, num_parts = setup.data_place
        smallest = micro_batch_size * num_parts
        for num_samples in range(self._global_batch_size, max(smallest - 1, micro_batch_size), -smallest):
            if self._global_batch_size % num_samples:
                continue
            try:
                return _compare(setup, sequence_length, num_samples, micro_batch_size)
            except UnsplittableBatchError as error:
                return _no_proof(str(error))
            except Exception as error:  # the batch is of our making: its failure is not the policy's
                if ranks.size > 1 and not isinstance(error, FirstRankError):
                    raise  # The other ranks wait for this one: nothing that it says could reach them.
                is_out_of_memory = error.is_out_of_memory if isinstance(error, FirstRankError) else None
                if not (setup.device.is_out_of_memory(error) or is_out_of_memory):
                    return error
            setup.device.release_cached_memory()
        return _no_proof("no batch larger than the micro-batch fits, so its division cannot be compared")


def _compare(setup: ProofSetup, sequence_length: int | None, num_samples: int, micro_batch_size: int) -> SplitFinding:
    whole = setup.batch(num_samples, step=_SPLIT_STEP, part=0, sequence_length=sequence_length)
    example = setup.batch(micro_batch_size, step=_SPLIT_STEP, part=1, sequence_length=sequence_length)
    parts = split_batch(whole, example, num_samples=num_samples, micro_batch_size=micro_batch_size)
    ranks = setup.ranks
    whole_run = on_first_rank(ranks, setup.device, lambda: _silent_run(setup.alone(), [whole]))
    own, num_parts = setup.data_place
    divided, _ = _silent_run(setup, parts[own::num_parts])
    if whole_run is None:
        finding = None
    else:
        undivided, unsilenced = whole_run
        tokens = f" of {sequence_length} tokens" if setup.spec.shorter_sequence_lengths else ""
        finding = _judge(
            setup.alone(),
            parts,
            undivided,
            divided,
            unsilenced,
            whole_batch=f"one batch of {num_samples} samples{tokens}",
            division=f"{len(parts)} x {micro_batch_size}"
            + (f" over {ranks.size} ranks ({setup.spec.strategy})" if ranks.size > 1 else ""),
        )
        undivided.close()
    divided.close()
    found = ranks.gather(finding)[0]
    assert found is not None, "the first rank runs the whole batch"
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
    difference = compare_records(undivided, divided, skip_integer_buffers=True)
    allowed = split_tolerance(undivided.dtype)
    not_finite = first_not_finite(undivided)
    precision = str(undivided.dtype).removeprefix("torch.")
    reference = f"{whole_batch}, whole and as {division}, in {precision}"
    if not_finite is not None:
        return _no_proof(f"the undivided batch proves nothing: {not_finite}")
    if difference.relative_error <= allowed:
        return SplitFinding(Verdict.MATCH, difference, allowed, reference, None)
    why = _why_it_differs(setup, parts, undivided.losses[0])
    if why is None and unsilenced:
        return _no_proof(f"random draws of {', '.join(sorted(unsilenced))} cannot be silenced")
    why = why or "the loss is not a mean over samples, or samples of one batch act on each other"
    reason = f"dividing the batch changes the training: {difference.reason}; {why}"
    return SplitFinding(Verdict.MISMATCH, difference, allowed, reference, reason)


def _silent_run(setup: ProofSetup, micro_batches: list[dict[str, Any]]) -> tuple[TrainingRecord, set[str]]:
    """One step's record, and what drew random numbers all the same."""
    rig = setup.fresh_rig()
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
    rig = setup.fresh_rig()

    def loss_of_part(part: Mapping[str, Any]) -> float:
        setup.seed_alike()
        loss = rig.step.accumulate([part])
        rig.step.drop_gradients()
        return loss

    with silenced():
        return explain_split(rig.model, parts, whole_loss=whole_loss, loss_of_part=loss_of_part)


def _no_proof(reason: str) -> SplitFinding:
    return SplitFinding(Verdict.UNVERIFIED, Difference(math.inf, None, None), None, None, reason)
