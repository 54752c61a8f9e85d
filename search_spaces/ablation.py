"""The first points of every search: the plain placements that people try by hand and expect to see in a table."""

from __future__ import annotations

from collections.abc import Sequence

from search_spaces.choices import SearchChoices
from search_spaces.policy import BLOCK, NONE, BatchShape, RecomputePolicy
from search_spaces.uniform import uniform_placements


def plain_policies(choices: SearchChoices) -> tuple[RecomputePolicy, ...]:
    """The baseline, then each action on all blocks, then other micro-batches; distinct, the most telling ones first.

    A search may afford only the first few, so the order is:

    1. the baseline: no recompute at the largest micro-batch;
    2. every block at the largest, and none at the smallest micro-batch. These are the two ways out when the baseline
       does not fit, and a tight cap may leave nothing else; together they bound what placement and micro-batch buy;
    3. the other actions at the largest micro-batch, which price each action, and the compiler's budgets there;
    4. every block at the smallest micro-batch: close to the least memory there is;
    5. no recompute, then every block, at the micro-batches between, the middle ones first, since each outcome says on
       which side of it the cap is crossed.

    With several lists of blocks an action applies to all lists that can take it.
    """
    placements = uniform_placements(choices)
    largest, *smaller = choices.batches
    first: list[tuple[str, BatchShape]] = [(NONE, largest), (BLOCK, largest)]
    if smaller:
        first.append((NONE, smaller[-1]))
    first.extend((action, largest) for action in placements)
    then = [(BLOCK, smaller[-1])] if smaller else []
    for action in (NONE, BLOCK):
        then.extend((action, batch) for batch in _middle_first(smaller[:-1]))

    def policies(order: Sequence[tuple[str, BatchShape]]) -> list[RecomputePolicy]:
        return [choices.policy(batch, placements[action]) for action, batch in order if action in placements]

    budgets = [choices.budget_policy(largest, budget) for budget in choices.budget_choices[1:]]
    return tuple(dict.fromkeys((*policies(first), *budgets, *policies(then))))


def _middle_first(batches: Sequence[BatchShape]) -> list[BatchShape]:
    """The middle one, then the middles of what is left on either side, and so on."""
    ordered: list[BatchShape] = []
    pending = [batches]
    while pending:
        stretch = pending.pop(0)
        if stretch:
            middle = len(stretch) // 2
            ordered.append(stretch[middle])
            pending += [stretch[:middle], stretch[middle + 1 :]]
    return ordered
