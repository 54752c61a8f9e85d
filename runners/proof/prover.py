"""Proves a policy against the plain model; keeps what it found out about the plain model for the next policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from runners.devices.base import Device
from runners.parallel.division import division_key
from runners.parallel.ranks import Ranks, any_rank
from runners.proof.compare import (
    Difference,
    compare_records,
    compare_streams,
    first_not_finite,
    recompute_tolerance,
    split_tolerance,
)
from runners.proof.compiled_baseline import CompiledBaseline, compiled_baseline
from runners.proof.limits import ProofLimits
from runners.proof.partly_plain import partly_plain
from runners.proof.setup import ProofSetup
from runners.proof.split_proof import SplitFinding, SplitProof
from runners.proof.training_record import TrainingRecord, record_training
from runners.rig import Rig
from runners.trial import Verdict, Verification, WorkloadSpec
from runners.workloads.base import Workload
from search_spaces.policy import BatchShape, RecomputePolicy

#: Optimizer steps compared; one alone can miss a fault that shows only now and then.
NUM_STEPS = 3
#: Micro-batches per compared step: two show accumulation, more would only repeat it.
_MAX_ACCUMULATION = 2
#: A baseline that differs from itself by more than this share proves nothing about others.
_USELESS_NOISE = 0.05
_NOTHING_FITS = "nothing fits that the policy could be compared with, not even one block kept plain at one sample"

#: What to do where code is wrong within the compiler's memory budget, by whether the model draws random numbers.
_BUDGET_ADVICE = {
    True: "what the compiler rebuilds within this budget is wrong, most likely dropout with other masks; leave it out "
    "of model.compile_memory_budget, or train without dropout",
    False: "what the compiler rebuilds within this budget is wrong; leave it out of model.compile_memory_budget",
}


@dataclass(frozen=True)
class _Baseline:
    """The plain model's run at one micro-batch size, and how far it is from itself when repeated.

    Attributes:
        others: Where the plain model does not fit: this run and each of these has another part of the blocks plain.
    """

    micro_batch_size: int
    batches: list[list[dict[str, Any]]]
    record: TrainingRecord
    others: tuple[TrainingRecord, ...]
    noise: float
    streams_repeat: bool
    doubt: str | None


class Prover:
    """Proofs for one workload on one device.

    Attributes:
        limits: What it leaves out.
        tighter_limits: Those to begin anew with where one of several ranks has run out of memory, which cannot go on
            together then; None where none has.
    """

    def __init__(
        self,
        workload: Workload,
        spec: WorkloadSpec,
        device: Device,
        *,
        global_batch_size: int,
        ranks: Ranks,
    ) -> None:
        self._setup = ProofSetup(workload, spec, device, ranks)
        self._ranks = ranks
        self.limits = ProofLimits()
        self.tighter_limits: ProofLimits | None = None
        self._split_proof = SplitProof(self._setup, global_batch_size=global_batch_size)
        self._baselines: dict[tuple[int, int, int, str], _Baseline] = {}
        self._chosen: dict[tuple[BatchShape, str, ProofLimits], _Baseline | None] = {}
        self._compiled: dict[tuple[int, int], CompiledBaseline] = {}

    def prepare(self, policy: RecomputePolicy) -> None:
        """Runs the plain model as far as `verify` will need it, so that this takes no part in a trial's memory."""
        baseline = self._baseline_for(policy)
        if baseline is None:
            return
        if policy.compile is not None and baseline.doubt is None and not baseline.others:
            self._compiled_baseline(policy, baseline)
        if self._is_divided(policy):
            self._split_finding(policy)

    def plain_micro_batches(self, policy: RecomputePolicy) -> list[dict[str, Any]] | None:
        """Those of one step of the plain model as it was run, None where it does not fit; `prepare` comes before."""
        baseline = self._baseline_for(policy)
        return None if baseline is None or baseline.others else baseline.batches[0]

    def _is_divided(self, policy: RecomputePolicy) -> bool:
        return policy.batch.gradient_accumulation_steps * self._ranks.size > 1

    def verify(self, policy: RecomputePolicy, rig: Rig) -> Verification:
        """Trains the rig, which must be fresh and under the policy, and compares.

        Compiled policies are compared with the plain model compiled alike, and that one with the model as given.

        Raises:
            Exception: Whatever the model raises under the policy; the caller knows what that means for a trial.
        """
        baseline = self._baseline_for(policy)
        if baseline is None:
            return Verification(verdict=Verdict.UNVERIFIED, reason=_NOTHING_FITS, recompute_verdict=Verdict.UNVERIFIED)
        reference = self._reference(baseline, policy)
        if baseline.doubt is not None:
            recompute = Verification(
                verdict=Verdict.UNVERIFIED,
                reason=baseline.doubt,
                reference=reference,
                recompute_verdict=Verdict.UNVERIFIED,
            )
            return self._with_split(recompute, policy)
        expected, allowed = baseline.record, recompute_tolerance(baseline.record.dtype, baseline.noise)
        if policy.compile is not None and baseline.others:
            return Verification(
                verdict=Verdict.UNVERIFIED,
                reason="the plain model does not fit, and compiled code is compared with nothing else",
                recompute_verdict=Verdict.UNVERIFIED,
            )
        if policy.compile is not None:
            compiled = self._compiled_baseline(policy, baseline)
            if not compiled.is_faithful:
                return self._with_split(_unfaithful(compiled, reference), policy)
            expected, allowed = compiled.record, max(allowed, compiled.tolerance)
            reference += f"; compiled, that one is off by {compiled.noise:.1g} of it"
        self._setup.seed()
        record = record_training(
            rig.step, baseline.batches, device=self._setup.device, dtype=baseline.record.dtype, ranks=self._ranks
        )
        of_each = [self._difference(each, record, baseline, allowed) for each in (expected, *baseline.others)]
        difference = self._worst(max(of_each, key=lambda difference: difference.relative_error))
        record.close()
        verdict = Verdict.MATCH if difference.relative_error <= allowed else Verdict.MISMATCH
        if policy.compile_memory_budget is not None and difference.reason is not None:
            draws_numbers = self._compiled_baseline(policy, baseline).draws_numbers
            difference = replace(difference, reason=f"{difference.reason}; {_BUDGET_ADVICE[draws_numbers]}")
        noise_note = f"the baseline repeats itself only to {baseline.noise:.1g}" if baseline.noise > 0 else None
        recompute = Verification(
            verdict=verdict,
            reason=difference.reason if verdict is Verdict.MISMATCH else noise_note,
            worst_tensor=difference.worst_tensor,
            max_relative_error=_finite(difference.relative_error),
            tolerance=allowed,
            num_steps=record.num_steps,
            reference=reference,
            recompute_verdict=verdict,
        )
        return self._with_split(recompute, policy)

    def _reference(self, baseline: _Baseline, policy: RecomputePolicy) -> str:
        ranks = f", {self._setup.spec.strategy} on {self._ranks.size} ranks" if self._ranks.size > 1 else ""
        at = f"at micro-batch {baseline.micro_batch_size}{ranks}"
        lengths = _in_words(_length_of_each_step(self._setup))
        if baseline.others:
            num_runs = 1 + len(baseline.others)
            return (
                f"{num_runs} runs of the model {at}, in each of which another part of the blocks is plain and all "
                f"others are recomputed, since it does not fit as given{lengths}"
            )
        is_smaller = baseline.micro_batch_size != policy.batch.micro_batch_size
        largest = ", the largest at which it fits" if is_smaller else ""
        return f"the model as given, without a policy, {at}{largest}{lengths}"

    def _difference(
        self, expected: TrainingRecord, record: TrainingRecord, baseline: _Baseline, allowed: float
    ) -> Difference:
        difference = compare_records(expected, record)
        if difference.relative_error <= allowed and baseline.streams_repeat:
            difference = compare_streams(expected, record) or difference
        return difference

    def _split_finding(self, policy: RecomputePolicy) -> SplitFinding:
        try:
            return self._split_proof.finding(policy, self.limits)
        except Exception as error:
            if self._ranks.size > 1 and self._setup.device.is_out_of_memory(error):
                can_retreat = self._setup.is_low_precision and self.limits.split == "float32"
                split: Literal["own_precision", "none"] = "own_precision" if can_retreat else "none"
                self.tighter_limits = self.limits.model_copy(update={"split": split})
            raise

    def _with_split(self, recompute: Verification, policy: RecomputePolicy) -> Verification:
        """Adds the finding on the division into micro-batches; the worse of the two decides."""
        if not self._is_divided(policy):
            return recompute
        finding = self._split_finding(policy)
        update: dict[str, Any] = {"split_verdict": finding.verdict}
        if recompute.verdict is Verdict.MATCH and finding.verdict is not Verdict.MATCH:
            update |= {
                "verdict": finding.verdict,
                "reason": finding.reason,
                "worst_tensor": finding.difference.worst_tensor,
                "max_relative_error": _finite(finding.difference.relative_error),
                "tolerance": finding.tolerance,
                "reference": finding.reference,
            }
        return recompute.model_copy(update=update)

    def _baseline_for(self, policy: RecomputePolicy) -> _Baseline | None:
        """None where nothing fits that the policy could be compared with; what did not fit is not tried again."""
        key = (policy.batch, division_key(self._setup.spec.strategy, policy), self.limits)
        if key not in self._chosen:
            self._chosen[key] = self._choose_baseline(policy)
        return self._chosen[key]

    def _choose_baseline(self, policy: RecomputePolicy) -> _Baseline | None:
        # A pipeline is not filled by fewer micro-batches than it has stages.
        enough = max(_MAX_ACCUMULATION, self._ranks.size if self._setup.spec.strategy == "pipeline" else 0)
        accumulation = min(policy.batch.gradient_accumulation_steps, enough)
        _, num_parts = self._setup.data_place
        smaller = [
            size
            for size in range(policy.batch.micro_batch_size, 0, -1)
            if policy.batch.global_batch_size % (size * num_parts) == 0
        ]
        limit = self.limits.plain_micro_batch
        for size in smaller:
            if limit is None or size <= limit:
                baseline = self._attempt(size, accumulation, policy, (), {"plain_micro_batch": size - 1})
                if baseline is not None:
                    return baseline
        num_runs = self.limits.num_parts
        while placements := partly_plain(policy, num_runs):
            baseline = self._attempt(smaller[-1], accumulation, policy, placements, {"num_parts": 2 * num_runs})
            if baseline is not None:
                return baseline
            num_runs *= 2
        return None

    def _attempt(
        self,
        micro_batch_size: int,
        accumulation: int,
        policy: RecomputePolicy,
        placements: Sequence[RecomputePolicy],
        otherwise: Mapping[str, int],
    ) -> _Baseline | None:
        """None where it does not fit.

        Args:
            placements: Of the runs; one plain run where there are none.
            otherwise: What changes in the limits where it does not fit.
        """
        try:
            return self._baseline(micro_batch_size, accumulation, policy, placements)
        except Exception as error:
            if not self._setup.device.is_out_of_memory(error):
                raise
            if self._ranks.size > 1:
                # The other ranks wait for this one, or have failed as well.
                self.tighter_limits = self.limits.model_copy(update=otherwise)
                raise
        self._setup.device.release_cached_memory()
        return None

    def _baseline(
        self, micro_batch_size: int, accumulation: int, policy: RecomputePolicy, placements: Sequence[RecomputePolicy]
    ) -> _Baseline:
        key = (micro_batch_size, accumulation, len(placements), division_key(self._setup.spec.strategy, policy))
        if key in self._baselines:
            return self._baselines[key]
        lengths = _length_of_each_step(self._setup)
        batches = [
            [
                self._setup.own_batch(micro_batch_size, step=step, part=part, sequence_length=length)
                for part in range(accumulation)
            ]
            for step, length in enumerate(lengths)
        ]
        first, *others = placements or (None,)
        record, repeated = self._plain_run(batches, policy, first), self._plain_run(batches, policy, first)
        difference = self._worst(compare_records(record, repeated))
        streams_repeat = not any_rank(self._ranks, compare_streams(record, repeated) is not None)
        repeated.close()
        self._baselines[key] = _Baseline(
            micro_batch_size=micro_batch_size,
            batches=batches,
            record=record,
            others=tuple(self._plain_run(batches, policy, each) for each in others),
            noise=difference.relative_error,
            streams_repeat=streams_repeat,
            # Losses and gradients are the first rank's to look at.
            doubt=self._ranks.gather(_doubt(record, difference))[0],
        )
        return self._baselines[key]

    def _compiled_baseline(self, policy: RecomputePolicy, baseline: _Baseline) -> CompiledBaseline:
        key = (baseline.micro_batch_size, len(baseline.batches[0]))
        if key not in self._compiled:
            self._compiled[key] = compiled_baseline(self._setup, policy, baseline.batches, baseline.record)
        return self._compiled[key]

    def _plain_run(
        self, batches: list[list[dict[str, Any]]], policy: RecomputePolicy, placed: RecomputePolicy | None
    ) -> TrainingRecord:
        rig = self._setup.fresh_rig(divided_for=placed or policy)
        rig.place(placed)
        self._setup.seed()
        dtype = self._setup.lowest_dtype(rig)
        return record_training(rig.step, batches, device=self._setup.device, dtype=dtype, ranks=self._ranks)

    def _worst(self, difference: Difference) -> Difference:
        """Of all ranks: each compares what is its own, the first what they made together."""
        of_ranks = self._ranks.gather(difference)
        rank = max(range(len(of_ranks)), key=lambda rank: of_ranks[rank].relative_error)
        worst = of_ranks[rank]
        return replace(worst, reason=f"on rank {rank} {worst.reason}") if rank > 0 and worst.reason else worst


def _length_of_each_step(setup: ProofSetup) -> list[int | None]:
    """The longest, the shortest, then those between, over and over; the longest comes first, as in training it may."""
    lengths = [*setup.extreme_lengths(), *reversed(setup.spec.shorter_sequence_lengths[1:])]
    return [lengths[step % len(lengths)] for step in range(NUM_STEPS)]


def _in_words(lengths: list[int | None]) -> str:
    return f", sequence lengths {', '.join(map(str, lengths))}" if len(set(lengths)) > 1 else ""


def _doubt(record: TrainingRecord, difference: Difference) -> str | None:
    not_finite = first_not_finite(record)
    if not_finite is not None:
        return f"the baseline proves nothing: {not_finite}"
    if difference.relative_error > _USELESS_NOISE:
        return f"the baseline does not repeat itself under the same seed: {difference.reason}"
    return None


def _unfaithful(compiled: CompiledBaseline, reference: str) -> Verification:
    """The compiler itself changes the training, or draws numbers that plain code cannot be made to draw."""
    difference = compiled.difference
    verdict = Verdict.UNVERIFIED if compiled.draws_numbers else Verdict.MISMATCH
    reason = f"compiled, the plain model trains otherwise than as given: {difference.reason}"
    if compiled.draws_numbers:
        reason += "; or its random numbers are drawn in another order, which cannot be told apart"
    return Verification(
        verdict=verdict,
        reason=reason,
        worst_tensor=difference.worst_tensor,
        max_relative_error=_finite(difference.relative_error),
        tolerance=split_tolerance(compiled.record.dtype),
        num_steps=compiled.record.num_steps,
        reference=reference,
        recompute_verdict=verdict,
    )


def _finite(error: float) -> float | None:
    return error if math.isfinite(error) else None
