"""Keep-sets of a study's first session, for those that go on with it: measured anew they could be others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runners.trial import ModelInspection
from search_spaces.model_shape import KeepSet
from tuner.results import BlockListRecord
from tuner.results_file import ResultsError, read_model


def with_known_keep_sets(inspection: ModelInspection, results_file: Path) -> ModelInspection:
    """The inspection with the keep-sets that results.json knows, of the lists of blocks that it knows."""
    try:
        records = {blocks.path: blocks for blocks in read_model(results_file).block_lists}
    except ResultsError:
        return inspection  # There is no earlier session, or its file cannot be read: the study's goal decides then.
    shape = inspection.shape
    lists = tuple(
        replace(blocks, keep_sets=_keep_sets(records[blocks.path])) if blocks.path in records else blocks
        for blocks in shape.block_lists
    )
    return inspection.model_copy(update={"shape": replace(shape, block_lists=lists)})


def _keep_sets(record: BlockListRecord) -> tuple[KeepSet, ...]:
    return tuple(KeepSet(each.asked, tuple(each.keep)) for each in record.keep_sets)
