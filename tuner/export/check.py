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
        conflict = exporter.conflict(policy.canonical(), context) or _statistics_conflict(exporter, policy, context)
        if conflict is None:
            return None
        refusal = conflict
    if context.through_python or check(exporter, policy, replace(context, through_python=True)) is not None:
        return refusal
    return replace(refusal, advice="; or ".join(filter(None, ("--python says it in training code", refusal.advice))))


def _statistics_conflict(exporter: Exporter, policy: RecomputePolicy, context: ExportContext) -> Refusal | None:
    """Recompute by a stack itself advances running statistics twice; only recompute by this package does not."""
    if exporter.name == POLICY_FORMAT or _leaves_recompute_to_us(exporter, context):
        return None
    recomputed = {placement.blocks for placement in policy.placement if placement.regions}
    counting = next((b.path for b in context.block_lists if b.keeps_statistics and b.path in recomputed), None)
    if counting is None:
        return None
    return Refusal(
        f"{counting}: its blocks normalize over the batch, and a rebuild by the stack would advance their running "
        "statistics a second time",
        "recompute of blocks without such statistics",
        f"export it with --format {POLICY_FORMAT}",
    )


def _leaves_recompute_to_us(exporter: Exporter, context: ExportContext) -> bool:
    """Whether training code applies the policy, by which a stack can say more than by itself."""
    by_itself = exporter.forms(replace(context, through_python=False))
    return context.through_python and [form.text for form in exporter.forms(context)] != [f.text for f in by_itself]
