"""Proves a policy against the plain model; keeps what it found out about the plain model for the next policy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from runners.devices.base import Device
from runners.proof.batch_split import UnsplittableBatchError, split_batch
from runners.proof.compare import (
    Difference,
    compare_records,
    compare_streams,
    first_not_finite,
    recompute_tolerance,
    split_tolerance,
)
from runners.proof.randomness import HOST_STREAMS, seed_everything, silenced, stream_digests
from runners.proof.split_hint import explain_split
from runners.proof.training_record import TrainingRecord, record_training
from runners.rig import Rig
from runners.trial import Verdict, Verification, WorkloadSpec
from runners.workloads.base import Workload
from search_spaces.policy import RecomputePolicy

#: Optimizer steps compared; one alone can miss a fault that shows only now and then.
NUM_STEPS = 3
#: Micro-batches per compared step: two show accumulation, more would only repeat it.
_MAX_ACCUMULATION = 2
#: A baseline that differs from itself by more than this share proves nothing about others.
_USELESS_NOISE = 0.05
#: Step number of the batch that is divided; far from those of the other steps.
_SPLIT_STEP = 1_000_000


@dataclass(frozen=True)
class _Baseline:
    """The plain model's run at one micro-batch size, and how far it is from itself when repeated."""

    micro_batch_size: int
    batches: list[list[dict[str, Any]]]
    record: TrainingRecord
    noise: float
    streams_repeat: bool
    doubt: str | None


@dataclass(frozen=True)
class _SplitFinding:
    verdict: Verdict
    difference: Difference
    tolerance: float | None
    reference: str | None
    reason: str | None


class Prover:
    """Proofs for one workload on one device."""

    def __init__(self, workload: Workload, spec: WorkloadSpec, device: Device, *, global_batch_size: int) -> None:
        self._workload = workload
        self._spec = spec
        self._device = device
        self._global_batch_size = global_batch_size
        self._baselines: dict[tuple[int, int], _Baseline] = {}
        self._splits: dict[int, _SplitFinding] = {}

    def prepare(self, policy: RecomputePolicy) -> None:
        """Runs the plain model as far as `verify` will need it, so that this takes no part in a trial's memory."""
        self._baseline_for(policy)
        if policy.batch.gradient_accumulation_steps > 1:
            self._split_finding(policy.batch.micro_batch_size)

    def verify(self, policy: RecomputePolicy, rig: Rig) -> Verification:
        """Trains the rig, which must be fresh and under the policy, and compares.

        Raises:
            Exception: Whatever the model raises under the policy; the caller knows what that means for a trial.
        """
        baseline = self._baseline_for(policy)
        reference = f"the same model without recompute at micro-batch {baseline.micro_batch_size}"
        if baseline.micro_batch_size != policy.batch.micro_batch_size:
            reference += ", the largest at which it fits"
        if baseline.doubt is not None:
            recompute = Verification(
                verdict=Verdict.UNVERIFIED,
                reason=baseline.doubt,
                reference=reference,
                recompute_verdict=Verdict.UNVERIFIED,
            )
            return self._with_split(recompute, policy)
        seed_everything(self._spec.seed)
        record = record_training(rig.step, baseline.batches, device=self._device, dtype=baseline.record.dtype)
        difference = compare_records(baseline.record, record)
        allowed = recompute_tolerance(baseline.record.dtype, baseline.noise)
        if difference.relative_error <= allowed and baseline.streams_repeat:
            difference = compare_streams(baseline.record, record) or difference
        record.close()
        verdict = Verdict.MATCH if difference.relative_error <= allowed else Verdict.MISMATCH
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

    def _with_split(self, recompute: Verification, policy: RecomputePolicy) -> Verification:
        """Adds the finding on the division into micro-batches; the worse of the two decides."""
        if policy.batch.gradient_accumulation_steps == 1:
            return recompute
        finding = self._split_finding(policy.batch.micro_batch_size)
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

    def _baseline_for(self, policy: RecomputePolicy) -> _Baseline:
        accumulation = min(policy.batch.gradient_accumulation_steps, _MAX_ACCUMULATION)
        smaller = [
            size
            for size in range(policy.batch.micro_batch_size, 0, -1)
            if policy.batch.global_batch_size % size == 0 and size <= policy.batch.micro_batch_size
        ]
        for size in smaller:
            try:
                return self._baseline(size, accumulation)
            except Exception as error:
                if size == smaller[-1] or not self._device.is_out_of_memory(error):
                    raise
            self._device.release_cached_memory()
        raise AssertionError("a micro-batch of one sample divides every batch")

    def _baseline(self, micro_batch_size: int, accumulation: int) -> _Baseline:
        key = (micro_batch_size, accumulation)
        if key in self._baselines:
            return self._baselines[key]
        batches = [
            [self._batch(micro_batch_size, step, part) for part in range(accumulation)] for step in range(NUM_STEPS)
        ]
        record, repeated = self._plain_run(batches), self._plain_run(batches)
        difference = compare_records(record, repeated)
        repeated.close()
        self._baselines[key] = _Baseline(
            micro_batch_size=micro_batch_size,
            batches=batches,
            record=record,
            noise=difference.relative_error,
            streams_repeat=compare_streams(record, repeated) is None,
            doubt=_doubt(record, difference),
        )
        return self._baselines[key]

    def _plain_run(self, batches: list[list[dict[str, Any]]]) -> TrainingRecord:
        rig = Rig(self._workload, self._spec, self._device)
        seed_everything(self._spec.seed)
        return record_training(rig.step, batches, device=self._device, dtype=self._lowest_dtype(rig))

    def _split_finding(self, micro_batch_size: int) -> _SplitFinding:
        if micro_batch_size not in self._splits:
            self._splits[micro_batch_size] = self._find_split(micro_batch_size)
        return self._splits[micro_batch_size]

    def _find_split(self, micro_batch_size: int) -> _SplitFinding:
        """Compares one batch, whole and divided, without recompute and with randomness silenced."""
        for num_samples in range(self._global_batch_size, micro_batch_size, -micro_batch_size):
            if self._global_batch_size % num_samples:
                continue
            try:
                return self._compare_split(num_samples, micro_batch_size)
            except UnsplittableBatchError as error:
                return _no_split_proof(str(error))
            except Exception as error:  # noqa: BLE001  # the batch is of our making: its failure is not the policy's
                if not self._device.is_out_of_memory(error):
                    text = " ".join(str(error).split())
                    return _no_split_proof(f"the model fails on a divided batch: {type(error).__name__}: {text}")
            self._device.release_cached_memory()
        return _no_split_proof("no batch larger than the micro-batch fits, so its division cannot be compared")

    def _compare_split(self, num_samples: int, micro_batch_size: int) -> _SplitFinding:
        whole = self._batch(num_samples, _SPLIT_STEP, 0)
        example = self._batch(micro_batch_size, _SPLIT_STEP, 1)
        parts = split_batch(whole, example, num_samples=num_samples, micro_batch_size=micro_batch_size)
        undivided, unsilenced = self._silent_run([whole])
        divided, _ = self._silent_run(parts)
        difference = compare_records(undivided, divided, skip_integer_buffers=True)
        allowed = split_tolerance(undivided.dtype)
        not_finite = first_not_finite(undivided)
        reference = (
            f"one batch of {num_samples} samples without recompute, whole and as {len(parts)} x {micro_batch_size}"
        )
        undivided.close()
        divided.close()
        if not_finite is not None:
            return _no_split_proof(f"the undivided batch proves nothing: {not_finite}")
        if difference.relative_error <= allowed:
            return _SplitFinding(Verdict.MATCH, difference, allowed, reference, None)
        why = self._why_split_differs(parts, undivided.losses[0])
        if why is None and unsilenced:
            return _no_split_proof(f"random draws of {', '.join(sorted(unsilenced))} cannot be silenced")
        why = why or "the loss is not a mean over samples, or samples of one batch act on each other"
        reason = f"dividing the batch changes the training: {difference.reason}; {why}"
        return _SplitFinding(Verdict.MISMATCH, difference, allowed, reference, reason)

    def _silent_run(self, micro_batches: list[dict[str, Any]]) -> tuple[TrainingRecord, set[str]]:
        rig = Rig(self._workload, self._spec, self._device)
        seed_everything(self._spec.seed)
        before = stream_digests(self._device)
        with silenced() as unsilenced:
            # The same seed before every micro-batch: what the model decides with Python's or NumPy's generator, or
            # with single draws, is then decided alike for the whole batch and for each part of it.
            record = record_training(
                rig.step,
                [micro_batches],
                device=self._device,
                dtype=self._lowest_dtype(rig),
                update=False,
                before_micro_batch=lambda: seed_everything(self._spec.seed),
            )
        drawn_from = {name for name in HOST_STREAMS if record.random_streams[name] != before[name]}
        return record, unsilenced | drawn_from

    def _why_split_differs(self, parts: list[dict[str, Any]], whole_loss: float) -> str | None:
        rig = Rig(self._workload, self._spec, self._device)

        def loss_of_part(part: Mapping[str, Any]) -> float:
            seed_everything(self._spec.seed)
            loss = rig.step.accumulate([part])
            rig.step.drop_gradients()
            return loss

        with silenced():
            return explain_split(rig.model, parts, whole_loss=whole_loss, loss_of_part=loss_of_part)

    def _batch(self, num_samples: int, step: int, part: int) -> dict[str, Any]:
        seed_everything(self._spec.seed + 1009 * step + part + 1)
        return self._workload.make_batch(num_samples)

    def _lowest_dtype(self, rig: Rig) -> torch.dtype:
        dtypes = {p.dtype for p in rig.model.parameters() if p.is_floating_point()}
        if self._spec.autocast is not None:
            dtypes.add(getattr(torch, self._spec.autocast))
        return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def _doubt(record: TrainingRecord, difference: Difference) -> str | None:
    not_finite = first_not_finite(record)
    if not_finite is not None:
        return f"the baseline proves nothing: {not_finite}"
    if difference.relative_error > _USELESS_NOISE:
        return f"the baseline does not repeat itself under the same seed: {difference.reason}"
    return None


def _no_split_proof(reason: str) -> _SplitFinding:
    return _SplitFinding(Verdict.UNVERIFIED, Difference(math.inf, None, None), None, None, reason)


def _finite(error: float) -> float | None:
    return error if math.isfinite(error) else None
