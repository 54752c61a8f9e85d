"""Whether a training stack can say a policy: one question for exports, for refusals and for searches with a target."""

from __future__ import annotations

from dataclasses import replace

from search_spaces.policy import RecomputePolicy
from tuner.export.base import ExportContext, Exporter, Refusal
from tuner.export.forms import first_misfit

#: The format that says everything.
POLICY_FORMAT = "policy"


def check(exporter: Exporter, policy: RecomputePolicy, context: ExportContext) -> Refusal | None:
    """Why the stack cannot say the policy; None where it says it exactly. Reads nothing but its arguments."""
    of_policy = policy.compile_memory_budget
    budget = context.compile_memory_budget if of_policy is None else of_policy
    if budget is not None and exporter.name != POLICY_FORMAT:
        advice = f"export it with --format {POLICY_FORMAT}"
        return Refusal(f"compile_memory_budget is {budget:g}", "no budget of the compiler", advice)
    forms = exporter.forms(context)
    misfit = first_misfit(policy, forms, context.block_lists)
    if misfit is not None:
        refusal = Refusal(misfit, ", ".join(form.text for form in forms) or "no placement at all")
    else:
        conflict = exporter.conflict(policy.canonical(), context)
        if conflict is None:
            return None
        refusal = conflict
    if context.through_python or check(exporter, policy, replace(context, through_python=True)) is not None:
        return refusal
    return replace(refusal, advice="; or ".join(filter(None, ("--python says it in training code", refusal.advice))))
