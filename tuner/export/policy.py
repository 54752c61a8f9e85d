"""`--format policy`: policy.yaml, which `tuner.load_policy` reads in training code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from search_spaces.policy import RecomputePolicy
from search_spaces.policy_file import policy_to_yaml
from tuner.export.base import ExportContext, HeaderSyntax, Refusal, StackVersion
from tuner.export.forms import ANYTHING, Form
from tuner.results import StudyResults, TrialRecord


class PolicyExporter:
    """Says every policy exactly, with what was measured beside it."""

    name = "policy"
    versions: tuple[StackVersion, ...] = (StackVersion("1", "tuner.load_policy, schema version 1"),)
    #: What a header would say stands in the file itself.
    header_syntax: HeaderSyntax = "none"

    def forms(self, context: ExportContext) -> tuple[Form, ...]:
        return (ANYTHING,)

    def conflict(self, policy: RecomputePolicy, context: ExportContext) -> Refusal | None:
        return None

    def write(self, study: StudyResults, trial: TrialRecord, context: ExportContext) -> str:
        return policy_yaml(study, trial)

    def notes(self, policy: RecomputePolicy, context: ExportContext) -> tuple[str, ...]:
        return ()

    def settings(self, policy: RecomputePolicy, context: ExportContext) -> dict[str, object]:
        return {}

    def obsolete_keys(self, context: ExportContext) -> tuple[str, ...]:
        return ()


def policy_yaml(study: StudyResults, trial: TrialRecord) -> str:
    """The text of policy.yaml for a trial."""
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
    model = study.search["model"]
    budget = budget_of(policy, study)
    return replace(policy, compile=model.get("compile"), compile_memory_budget=budget, measured=measured)


def budget_of(policy: RecomputePolicy, study: StudyResults) -> float | None:
    """The compiler's memory budget that the study's trials of the policy had."""
    of_study = study.search["model"].get("compile_memory_budget")
    is_searched = isinstance(of_study, list | tuple)
    return policy.compile_memory_budget if policy.compile_memory_budget is not None or is_searched else of_study
