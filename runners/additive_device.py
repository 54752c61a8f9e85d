"""A made-up device on which costs add up over blocks, for studies on a `ReplayRunner`: in tests and benchmarks."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from runners.trial import MemoryByKind, TrialResult, TrialSpec, TrialStatus, Verdict, Verification

#: What it says of every policy.
MATCH = Verification(
    verdict=Verdict.MATCH, max_relative_error=0.0, tolerance=1e-5, num_steps=3, reference="the same model"
)


@dataclass(frozen=True)
class AdditiveDevice:
    """Runs the policies of a model with one list of blocks; a plain step with one micro-batch takes a second.

    Attributes:
        name: As results show it.
        num_blocks: Of the model.
        static_bytes: What is alive without any activation.
        kept_bytes: By action, what a block keeps of each sample.
        cost: By action, what recomputing it in all blocks costs, in seconds.
        split_cost: What each further micro-batch costs, in seconds.
        reference_step_time_s: Of the interleaved reference.
        tokens_per_sample: Length of a sample.
        noise: Relative standard deviation of a step's time.
    """

    name: str
    num_blocks: int
    static_bytes: int
    kept_bytes: Mapping[str, int]
    cost: Mapping[str, float]
    split_cost: float
    reference_step_time_s: float
    tokens_per_sample: int
    noise: float = 0.0

    def measure(self, spec: TrialSpec) -> TrialResult:
        """The trial as a worker would answer it; the same trial number has the same noise."""
        batch = spec.policy.batch
        placement = spec.policy.placement
        actions = placement[0].actions() if placement else ("none",) * self.num_blocks
        recompute_time_s = sum(self.cost[action] for action in actions) / self.num_blocks
        noise = random.Random(spec.trial_number).gauss(1.0, self.noise)
        step_time_s = noise * (1 + recompute_time_s + self.split_cost * (batch.gradient_accumulation_steps - 1))
        activations = batch.micro_batch_size * sum(self.kept_bytes[action] for action in actions)
        peak = self.static_bytes + activations
        samples_per_second = batch.global_batch_size / step_time_s
        return TrialResult(
            trial_number=spec.trial_number,
            policy=spec.policy,
            status=TrialStatus.COMPLETED,
            samples_per_second=samples_per_second,
            tokens_per_second=self.tokens_per_sample * samples_per_second,
            step_time_s=step_time_s,
            step_time_spread_s=self.noise * step_time_s,
            num_steps=5,
            relative_speed=self.reference_step_time_s / step_time_s,
            relative_speed_spread=self.noise,
            reference_step_time_s=self.reference_step_time_s,
            forward_time_s=0.3,
            backward_time_s=0.6,
            recompute_time_s=step_time_s - 1,
            optimizer_time_s=0.1,
            recomputed_flops_ratio=0.0,
            peak_memory_bytes=peak,
            peak_allocated_bytes=peak,
            memory_bytes=MemoryByKind(
                parameters=self.static_bytes,
                gradients=0,
                optimizer_states=0,
                buffers=0,
                activations=activations,
                temporary=0,
            ),
            verification=MATCH,
            node="node-1",
            device=self.name,
            worker_pid=1,
            started_at="2026-01-02T03:04:05+00:00",
        )
