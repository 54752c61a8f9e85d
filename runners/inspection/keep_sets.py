"""Which operators of a block are worth keeping while the rest of it is rebuilt: cheap to store, dear to run again.

A rebuild under selective recompute runs every operator but those that are kept, up to the last tensor that backward
needs. So what keeping one saves is its own time, whatever else is kept, and what it costs is its outputs' bytes: the
sets worth having are those that take the operators in order of time per byte.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import nn

from runners.inspection.operator_profile import OperatorCall, OperatorProfile, profile_operators
from search_spaces.actions import ATTENTION_ONLY, EVERY_SECOND_MATMUL, MATMULS, SELECTIVE, kept_by
from search_spaces.kept_operators import KeptOperator, normal_keep
from search_spaces.model_shape import KeepSet

#: Shares of a rebuild's time that the sets found save; each share is one set.
_SAVED_SHARES = (0.3, 0.55, 0.75, 0.9)
#: A set that keeps more than this share of what the plain block keeps saves too little memory to be a choice.
_MOST_KEPT = 0.75
#: Operators with less than this share of a rebuild's time are not worth a rule.
_LEAST_SHARE = 0.01


def find_keep_sets(
    blocks: Sequence[nn.Module], run_step: Callable[[], object], asked: Iterable[str]
) -> tuple[KeepSet, ...]:
    """The sets that answer the selective actions which were asked for, from the middle block of the list.

    Args:
        run_step: Runs one forward pass of the model on a small batch, with gradients enabled.
        asked: ``selective``, or ``selective:`` with presets.
    """
    wanted = tuple(asked)
    if not wanted:
        return ()
    profile = profile_operators(blocks[len(blocks) // 2], run_step)
    if profile is None:
        return ()
    return tuple(KeepSet(action, keep) for action in wanted for keep in _sets_for(action, profile))


def sets_worth_keeping(profile: OperatorProfile) -> Iterator[tuple[OperatorCall, ...]]:
    """The sets on the hull of bytes kept over time saved, those that keep least first."""
    rebuilt_s = sum(call.time_s for call in profile.calls if call.is_rebuilt)
    useful = [
        call
        for call in profile.calls
        if call.is_rebuilt and call.can_be_kept and call.num_bytes and call.time_s >= _LEAST_SHARE * rebuilt_s
    ]
    useful.sort(key=lambda call: call.time_s / call.num_bytes, reverse=True)
    chosen: list[OperatorCall] = []
    shares = iter(_SAVED_SHARES)
    share = next(shares)
    for index, call in enumerate(useful):
        chosen.append(call)
        if sum(each.num_bytes for each in chosen) > _MOST_KEPT * profile.saved_bytes:
            return
        saved = sum(each.time_s for each in chosen)
        is_last = index + 1 == len(useful)
        if saved >= share * rebuilt_s or is_last:
            yield tuple(chosen)
            further = next((each for each in shares if each * rebuilt_s > saved), None)
            if further is None:
                return
            share = further


def _sets_for(action: str, profile: OperatorProfile) -> Iterator[tuple[str, ...]]:
    if action == SELECTIVE:
        yield from (_rules(chosen, profile) for chosen in sets_worth_keeping(profile))
        return
    keep = {rule for preset in kept_by(action) for rule in _preset(preset, profile)}
    if keep:
        yield normal_keep(keep)


def _preset(name: str, profile: OperatorProfile) -> Iterator[str]:
    products = sorted({call.name for call in profile.calls if call.is_product})
    if name == MATMULS:
        yield from products
    elif name == EVERY_SECOND_MATMUL:
        yield from (str(KeptOperator(product, step=2)) for product in products)
    elif name == ATTENTION_ONLY:
        yield from {call.name for call in profile.calls if call.is_attention}


def _rules(chosen: Iterable[OperatorCall], profile: OperatorProfile) -> tuple[str, ...]:
    """The calls as rules; an operator all of whose calls are kept is named without them."""
    calls: defaultdict[str, set[int]] = defaultdict(set)
    for each in chosen:
        calls[each.name].add(each.call)
    totals: defaultdict[str, int] = defaultdict(int)
    for each in profile.calls:
        totals[each.name] += 1
    return normal_keep(
        str(KeptOperator(name, None if len(kept) == totals[name] else tuple(sorted(kept))))
        for name, kept in calls.items()
    )
