"""Whether peaks added up from a profile are those of whole dry runs, on policies that were not traced for it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from runners.dry_run.dry_run import DryRun
from search_spaces.choices import BlockListChoices, SearchChoices
from search_spaces.memory_profile import MemoryProfile
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import SEGMENT, BatchShape, BlockListPlacement, RecomputePolicy

#: Policies that are compared.
_NUM_CHECKED = 4
#: Error above which a profile is not to be used.
_MAX_RELATIVE_ERROR = 0.02


def checked(profile: MemoryProfile, dry_run: DryRun, choices: SearchChoices) -> MemoryProfile:
    """The profile with what the comparison showed; it refuses where peaks are too far off."""
    timeline = MemoryTimeline(profile)
    policies = list(check_policies(choices))
    errors = []
    for policy in policies:
        expected = dry_run.peak_bytes(policy)
        errors.append(abs(timeline.peak_bytes(policy) / expected - 1))
    worst = max(errors)
    refusal = None
    if worst > _MAX_RELATIVE_ERROR:
        policy = policies[errors.index(worst)]
        refusal = (
            f"peaks added up from single blocks are off by {worst:.1%} (policy {policy.summary()}), so what one block "
            "keeps depends on how others are placed"
        )
    return replace(profile, num_checked=len(policies), max_relative_error=worst, refusal=refusal)


def check_policies(choices: SearchChoices) -> Iterator[RecomputePolicy]:
    """The longest segments from the first block on, then random mixtures; always the same ones, at various sizes."""
    draw = random.Random(0)
    batches = list(choices.batches)
    for number in range(_NUM_CHECKED):
        batch: BatchShape = batches[number % len(batches)]
        place = _longest_segments if number == 0 else lambda of: random_placement(of, draw)
        yield RecomputePolicy(batch, tuple(map(place, choices.block_lists)), choices.rng_choices[0])


def random_placement(choices: BlockListChoices, draw: random.Random) -> BlockListPlacement:
    """A placement of a few runs of modules, each under an action of its own."""
    borders = sorted({0, *(draw.randrange(choices.num_modules) for _ in range(3))})
    actions: list[str] = []
    for first, end in zip(borders, [*borders[1:], choices.num_modules], strict=True):
        actions += [draw.choice(choices.actions)] * (end - first)
    size = draw.choice(choices.segment_sizes) if choices.segment_sizes else None
    return choices.place(actions, size)


def _longest_segments(choices: BlockListChoices) -> BlockListPlacement:
    action = SEGMENT if choices.segment_sizes else choices.actions[-1]
    return choices.place([action] * choices.num_modules, max(choices.segment_sizes, default=None))
