"""From a measured trial to the text of a training config, exactly or with a refusal that names the ways out."""

from __future__ import annotations

from runners.trial import Verdict
from tuner.export.base import ExportContext, Exporter, ExportError, Refusal
from tuner.export.check import check
from tuner.export.header import header_lines, with_header
from tuner.export.nearest import describe_nearest
from tuner.results import StudyResults, TrialRecord


def export_trial(
    exporter: Exporter,
    study: StudyResults,
    trial: TrialRecord,
    context: ExportContext,
    *,
    memory_cap_bytes: int | None = None,
) -> str:
    """The whole file.

    Args:
        memory_cap_bytes: The cap that the user asked for; a refusal proposes no trial above it.

    Raises:
        ExportError: The stack cannot say the policy; the message names the first block that cannot be said, what the
            stack accepts, and measured trials that it can say.
    """
    refuse_unless_sayable(exporter, study, trial, context, memory_cap_bytes=memory_cap_bytes)
    body = exporter.write(study, trial, context)
    return with_header(body, exporter, header_lines(exporter, study, trial, context))


def refuse_unless_sayable(
    exporter: Exporter,
    study: StudyResults,
    trial: TrialRecord,
    context: ExportContext,
    *,
    memory_cap_bytes: int | None,
) -> None:
    """Raises what `export_trial` would."""
    refusal = check(exporter, trial.to_policy(), context) or _unproven(exporter, trial)
    if refusal is None:
        return
    ways = f"{refusal.advice}; or " if refusal.advice else ""
    line = (
        f"--format {exporter.name} cannot say trial {trial.number} ({trial.policy_summary}): {refusal.what}; "
        f"{context.version.covers} accepts {refusal.accepts}; {ways}name a trial that it can say"
    )
    raise ExportError((line, *describe_nearest(exporter, study, trial, context, memory_cap_bytes=memory_cap_bytes)))


def _unproven(exporter: Exporter, trial: TrialRecord) -> Refusal | None:
    """Recompute with other random numbers than forward's trains something else wherever a block has dropout."""
    policy = trial.to_policy()
    verdict = None if trial.verification is None else trial.verification.verdict
    if policy.preserve_rng_state or not policy.recomputes or verdict is Verdict.MATCH or exporter.name == "policy":
        return None
    return Refusal(
        f"preserve_rng_state is false, and the trial is not proven to train the same model ({verdict or 'no proof'})",
        "that only where a proof shows that no dropout is alive in recomputed blocks",
        "prove the policy with tune verify",
    )
