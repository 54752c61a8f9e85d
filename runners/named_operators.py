"""Checks the operators that ``placement.actions`` names itself: what no block runs could never be kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import nn

from runners.base import WorkloadError
from runners.kept_outputs import operator_named
from runners.operator_profile import profile_operators
from search_spaces.actions import asks_for_keep_sets, kept_by
from search_spaces.kept_operators import KeptOperator


def refuse_idle_operators(
    actions: Iterable[str], block_lists: Sequence[Sequence[nn.Module]], run_step: Callable[[], object]
) -> None:
    """Looks for each action's operators in the middle block of each list.

    Args:
        actions: Selective ones; those that name no operators themselves are passed over.
        run_step: Runs one forward pass of the model on a small batch, with gradients enabled.

    Raises:
        WorkloadError: This torch lacks one of them, or no list's block runs any of an action's.
    """
    named = [action for action in actions if not asks_for_keep_sets(action)]
    if not named:
        return
    profiles = [profile_operators(blocks[len(blocks) // 2], run_step) for blocks in block_lists]
    run = {call.name for profile in profiles if profile is not None for call in profile.calls}
    for action in named:
        names = [KeptOperator.parse(entry).name for entry in kept_by(action)]
        unknown = next((name for name in names if operator_named(name) is None), None)
        if unknown is not None:
            raise WorkloadError(
                f"placement.actions names {action}, but this torch has no operator {unknown}; import what brings it in "
                "the model's file, or leave it out"
            )
        if run and not run.intersection(names):
            raise WorkloadError(
                f"placement.actions names {action}, but no block runs such an operator; they run "
                f"{', '.join(sorted(run))}; name some of those (operators have other names on other devices)"
            )
