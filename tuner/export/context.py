"""What a study knows of its model, as exporters need it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.model_shape import BlockList, ModelShape
from tuner.export.base import ExportContext, StackVersion
from tuner.results import BlockListRecord, StudyResults


def context_of(study: StudyResults, version: StackVersion, *, through_python: bool = False) -> ExportContext:
    """The context of all trials of a study."""
    model: Mapping[str, Any] = study.search.get("model", {})
    budget = model.get("compile_memory_budget")
    stages = study.search.get("runner", {}).get("pipeline_stages")
    return ExportContext(
        version=version,
        block_lists=tuple(map(_block_list, study.model.block_lists)),
        model_class=study.model.model_class,
        model_factory=model.get("factory", ""),
        sequence_length=_longest(study.search.get("batch", {}).get("sequence_length")),
        dtype=model.get("dtype", "float32"),
        autocast=model.get("autocast"),
        compile=model.get("compile"),
        compile_memory_budget=budget if isinstance(budget, int | float) else None,
        through_python=through_python,
        pipeline_stages=stages if isinstance(stages, int) else 1,
    )


def context_of_shape(shape: ModelShape, version: StackVersion) -> ExportContext:
    """The context before there is a study: enough to say which policies a stack can say."""
    return ExportContext(version=version, block_lists=shape.block_lists)


def _block_list(record: BlockListRecord) -> BlockList:
    return BlockList(
        record.path,
        record.kind,
        record.num_blocks,
        tuple(record.units.items()),
        tuple(map(tuple, record.aliases)),
        record.segment_refusal,
        keeps_statistics=record.keeps_statistics,
    )


def _longest(lengths: object) -> int | None:
    if isinstance(lengths, list | tuple):
        return max((int(length) for length in lengths), default=None)
    return lengths if isinstance(lengths, int) else None
