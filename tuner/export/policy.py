"""`--format policy`: policy.yaml, which `tuner.load_policy` reads in training code."""

from __future__ import annotations

from typing import Any

from search_spaces.policy import RecomputePolicy
from search_spaces.policy_file import policy_to_yaml
from tuner.results import StudyResults, TrialRecord


class PolicyExporter:
    """Says every policy exactly, with what was measured beside it."""

    def export(self, study: StudyResults, trial: TrialRecord) -> str:
        return policy_to_yaml(with_measurements(study, trial))


def with_measurements(study: StudyResults, trial: TrialRecord) -> RecomputePolicy:
    """The trial's policy, carrying the figures that the study measured for it."""
    policy = trial.to_policy()
    proof = trial.verification
    measured: dict[str, Any] = {
        "study": study.study,
        "trial": trial.number,
        "samples_per_second": trial.samples_per_second,
        "tokens_per_second": trial.tokens_per_second,
        "step_time_s": trial.step_time_s,
        "peak_memory_bytes": trial.peak_memory_bytes,
        "memory_cap_bytes": study.memory_cap_bytes,
        "device": trial.device,
        "versions": {name: study.environment.get(name) for name in ("python", "torch")},
        "verification": None if proof is None else proof.verdict.value,
    }
    return RecomputePolicy(policy.batch, policy.placement, policy.preserve_rng_state, measured)
