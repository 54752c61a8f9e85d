"""`placement.target`: what a search may choose between, so that a stack can say whatever wins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, product

from search_spaces.choices import BlockListChoices, Placements, RngChoice, SearchChoices, meant_by
from search_spaces.policy import NONE, SEGMENT, BlockListPlacement, RecomputePolicy
from search_spaces.two_action import TwoActionEncoding
from tuner.export.base import ExportContext, Exporter
from tuner.export.check import check
from tuner.export.context import context_of_shape
from tuner.export.forms import Form, FreeForm, placements_of

#: Placements of one free form that are listed beside those of other forms, coarse ones first.
_MOST_LISTED = 20_000


def choices_within(choices: SearchChoices, exporter: Exporter) -> SearchChoices:
    """The part of the choices that the newest version of a stack can say; the plain placement always remains.

    Where actions still combine freely, only the actions become fewer. Else the placements are listed.
    """
    context = context_of_shape(choices.shape, exporter.versions[0])
    forms = exporter.forms(context)
    free = [form for form in forms if isinstance(form, FreeForm)]
    listed = [placements for form in forms for placements in _listed(form, choices, context)]
    if len(free) == 1 and all(_is_free(placements, free[0], context) for placements in listed):
        restricted = replace(choices, actions=_free_actions(choices, free[0]))
        candidates = _free_placements(restricted)
        return replace(restricted, preserve_rng_state=_rng_choice(candidates, choices, exporter, context))
    for form in free:
        listed += _free_placements(replace(choices, actions=_free_actions(choices, form)))
    rng = _rng_choice(listed, choices, exporter, context)
    plain = tuple(of_list.place([NONE] * of_list.num_modules) for of_list in choices.block_lists)
    said = [p for p in listed if all(_can_be_said(p, r, choices, exporter, context) for r in _handlings(rng))]
    allowed = tuple(sorted(dict.fromkeys([plain, *said]), key=_num_recomputed))
    used = {action for placements in allowed for placement in placements for action in placement.actions()}
    lists = choices.shape.block_lists
    actions = tuple(a for a in choices.actions if any(used.intersection(meant_by(a, blocks)) for blocks in lists))
    return replace(choices, actions=actions or (NONE,), preserve_rng_state=rng, allowed=allowed)


def _listed(form: Form, choices: SearchChoices, context: ExportContext) -> Iterator[Placements]:
    """Placements of a form that counts its own, as far as the search may try them."""
    if isinstance(form, FreeForm):
        return
    for layout in form.layouts(context.block_lists):
        placements = placements_of(layout, context.block_lists)
        if all(map(_may_be_tried, placements, choices.block_lists)):
            yield placements


def _may_be_tried(placement: BlockListPlacement, choices: BlockListChoices) -> bool:
    try:
        actions = choices.module_actions(placement)
    except ValueError:
        # Positions of one module that would have to differ.
        return False
    sizes = {region.segment_size for region in placement.regions if region.action == SEGMENT}
    return set(actions) <= set(choices.actions) and sizes <= set(choices.segment_sizes)


def _is_free(placements: Placements, form: FreeForm, context: ExportContext) -> bool:
    by_path = dict(zip((blocks.path for blocks in context.block_lists), placements, strict=True))
    return all(form.allows(action, b) for b in context.block_lists for action in by_path[b.path].actions())


def _free_actions(choices: SearchChoices, form: FreeForm) -> tuple[str, ...]:
    """The actions that every list which can take them may take."""
    allowed = tuple(
        action
        for action in choices.actions
        if all(
            form.allows(meant, of_list.blocks)
            for of_list in choices.block_lists
            for meant in meant_by(action, of_list.blocks)
            if meant in of_list.actions
        )
    )
    return allowed or (NONE,)


def _free_placements(choices: SearchChoices) -> list[Placements]:
    """Placements that combine at most two actions per list, coarse ones first."""
    per_list = [list(islice(_two_actions(of_list), _MOST_LISTED)) for of_list in choices.block_lists]
    return list(islice(product(*per_list), _MOST_LISTED))


def _two_actions(choices: BlockListChoices) -> Iterator[BlockListPlacement]:
    encoding = TwoActionEncoding(choices)
    for level in range(encoding.num_levels()):
        yield from encoding.placements(level)


def _rng_choice(
    candidates: Sequence[Placements], choices: SearchChoices, exporter: Exporter, context: ExportContext
) -> RngChoice:
    """The handling of RNG state with which the stack can say some recompute; the user's own where it can say none."""
    recomputing = [placements for placements in candidates if _num_recomputed(placements)]
    kept = [
        preserve
        for preserve in choices.rng_choices
        if any(_can_be_said(placements, preserve, choices, exporter, context) for placements in recomputing)
    ]
    return kept[0] if len(kept) == 1 else choices.preserve_rng_state


def _handlings(choice: RngChoice) -> tuple[bool, ...]:
    return (True, False) if choice == "search" else (choice,)


def _can_be_said(
    placements: Placements, preserve: bool, choices: SearchChoices, exporter: Exporter, context: ExportContext
) -> bool:
    return check(exporter, RecomputePolicy(choices.batches[0], placements, preserve), context) is None


def _num_recomputed(placements: Placements) -> int:
    return sum(region.num_blocks for placement in placements for region in placement.regions)
