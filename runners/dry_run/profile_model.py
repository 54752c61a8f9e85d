"""Dry runs of a few policies -> the profile that the peak of every policy is computed from."""

from __future__ import annotations

from runners.dry_run.dry_run import DryRun
from search_spaces.choices import SearchChoices
from search_spaces.memory_profile import MemoryProfile


def profile_model(dry_run: DryRun, choices: SearchChoices) -> MemoryProfile:
    totals = dry_run.totals(min(choices.micro_batch_sizes))
    return MemoryProfile(
        totals.parameter_bytes, totals.gradient_bytes, totals.optimizer_state_bytes, (), refusal="not traced"
    )
