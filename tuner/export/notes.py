"""Sentences for headers that several stacks need: what neither a config nor an exporter can see to."""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces.policy import RecomputePolicy
from tuner.export.base import ExportContext


def processes_note(policy: RecomputePolicy) -> str:
    """For stacks whose launcher decides on the number of processes."""
    return (
        f"the number of processes comes from the launcher; start {policy.batch.data_parallel_degree}, or the global "
        "batch is another one"
    )


def autocast_note(context: ExportContext, *, bfloat16: str, float16: str) -> Iterator[str]:
    """For trials that were measured under autocast: the stack's own setting for it; nothing for others."""
    if context.autocast is not None:
        setting = {"bfloat16": bfloat16, "float16": float16}[context.autocast]
        yield f"measured under autocast to {context.autocast}: set {setting}"


def policy_file_note(how: str) -> str:
    """For exports through Python, whose placement stands in policy.yaml alone."""
    return f"the placement is not in this file: export it with --format policy to policy.yaml, and {how}"
