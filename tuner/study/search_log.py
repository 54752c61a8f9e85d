"""What the log of a search begins with: what was found in the model, and the cap that trials must keep."""

from __future__ import annotations

import logging

from runners.trial import ModelInspection
from search_spaces.choices import SearchChoices
from tuner.memory_size import describe_bytes

logger = logging.getLogger(__name__)


def log_search(inspection: ModelInspection, choices: SearchChoices, *, memory_cap_bytes: int) -> None:
    """Blocks with their units, notes on what is not searched, and the cap with the peak that is tested against it."""
    shape = inspection.shape
    for blocks in shape.block_lists:
        units = ", ".join(f"{name}={path}" for name, path in blocks.units) or "none found"
        logger.info("blocks %s: %d x %s; units: %s", blocks.path, blocks.num_blocks, blocks.kind, units)
    for note in (*shape.notes, *choices.notes()):
        logger.info("note: %s", note)
    kind = inspection.environment.get("device_kind")
    measure = "allocated on the CPU by torch" if kind == "cpu" else "reserved by the device's caching allocator"
    logger.info("memory cap: %s, tested against the peak %s", describe_bytes(memory_cap_bytes), measure)
