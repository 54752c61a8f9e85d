"""Checks the operators that ``placement.actions`` names itself: what no block runs could never be kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import nn

from runners.base import WorkloadError
from runners.inspection.operator_profile import profile_operators
from runners.regions.kept_outputs import operator_named
from search_spaces.actions import asks_for_keep_sets, kept_by, normal_action
from search_spaces.kept_operators import KeptOperator


def idle_actions(
    actions: Iterable[str], block_lists: Sequence[Sequence[nn.Module]], run_step: Callable[[], object]
) -> list[tuple[str, ...]]:
    """Looks for each action's operators in the middle block of each list.

    Args:
        actions: Selective ones; those that name no operators themselves are passed over.
        run_step: Runs one forward pass of the model on a small batch, with gradients enabled.

    Returns:
        For each list the actions, in normal form, of whose operators its block runs none.

    Raises:
        WorkloadError: This torch lacks one of them, or no list's block runs any of an action's.
    """
    named = {normal_action(action): action for action in actions if not asks_for_keep_sets(action)}
    if not named:
        return [() for _ in block_lists]
    profiles = [profile_operators(blocks[len(blocks) // 2], run_step) for blocks in block_lists]
    run_by_list = [set() if profile is None else {call.name for call in profile.calls} for profile in profiles]
    operators = {action: {KeptOperator.parse(entry).name for entry in kept_by(action)} for action in named}
    _refuse(named, operators, set().union(*run_by_list))
    return [
        tuple(action for action, names in operators.items() if run and not run.intersection(names))
        for run in run_by_list
    ]


def _refuse(named: Mapping[str, str], operators: Mapping[str, set[str]], run: set[str]) -> None:
    for normal, action in named.items():
        names = operators[normal]
        unknown = next((name for name in sorted(names) if operator_named(name) is None), None)
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
