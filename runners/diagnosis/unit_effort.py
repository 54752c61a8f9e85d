"""How long it takes to measure what units cost, told before it is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runners.diagnosis.ablation_regions import ablation_placements, keys_of
from search_spaces.choices import SearchChoices
from search_spaces.model_shape import BlockList

#: A step with recompute takes about as long as so many forward passes, one without it as one less.
_STEP_RATIO = 4


@dataclass(frozen=True)
class Effort:
    """What measuring at one size takes: once, and for each round of timing."""

    once_s: float
    round_s: float

    def seconds(self, num_rounds: int) -> float:
        return self.once_s + num_rounds * self.round_s


def effort_of(choices: SearchChoices, forward_s: float, inner_kinds: Callable[[BlockList], Sequence[int]]) -> Effort:
    """What measuring takes at the size at which a forward pass takes so long.

    Args:
        inner_kinds: Of a list, a number for each block, equal for those that keep alike tensors.
    """
    lists = choices.block_lists
    num_forwards = 1 + sum(len(set(keys_of(each, inner_kinds(each.blocks)).values())) for each in lists)
    num_placements = len(list(ablation_placements(choices)))
    return Effort(num_forwards * forward_s, _STEP_RATIO * num_placements * forward_s)


def least_seconds(choices: SearchChoices, forward_s: Callable[[int], float]) -> float:
    """Seconds below which nothing can be measured at any size.

    All blocks are taken for alike, so no model needs fewer forward passes.

    Args:
        forward_s: The least that a forward pass takes, by its micro-batch size.
    """
    sizes = sorted(choices.micro_batch_sizes, reverse=True)
    spent_s = (_STEP_RATIO - 1) * forward_s(sizes[-1])  # The warm-up.
    totals_s = []
    for size in sizes:
        spent_s += forward_s(size)  # From which the effort is told.
        effort = effort_of(choices, forward_s(size), lambda blocks: (0,) * blocks.num_blocks)
        totals_s.append(spent_s + effort.seconds(1))
    return min(totals_s)
