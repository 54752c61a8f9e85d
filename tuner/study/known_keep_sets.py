"""Keep-sets of a study's first session, for those that go on with it: measured anew they could be others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from runners.trial import ModelInspection
from search_spaces.model_shape import KeepSet
from tuner.results_file import ResultsError, read_model
from tuner.study.record import keep_sets_of


def with_known_keep_sets(
    inspection: ModelInspection, results_file: Path, stored_goal: Callable[[], Mapping[str, Any] | None]
) -> ModelInspection:
    """The inspection with the keep-sets of an earlier session, for the lists of blocks that it knows.

    Args:
        results_file: Has them, as a rule.
        stored_goal: What the store of trials says that the study measures, asked where the file cannot be read.
    """
    shape = inspection.shape
    known = _known(results_file, stored_goal)
    lists = tuple(
        replace(blocks, keep_sets=known[blocks.path]) if blocks.path in known else blocks
        for blocks in shape.block_lists
    )
    return inspection.model_copy(update={"shape": replace(shape, block_lists=lists)})


def _known(results_file: Path, stored_goal: Callable[[], Mapping[str, Any] | None]) -> dict[str, tuple[KeepSet, ...]]:
    """By the path of each list."""
    try:
        records = {blocks.path: blocks.keep_sets for blocks in read_model(results_file).block_lists}
    except ResultsError:
        goal = stored_goal()
        records = {} if goal is None else keep_sets_of(goal)
    return {path: tuple(KeepSet(each.asked, tuple(each.keep)) for each in found) for path, found in records.items()}
