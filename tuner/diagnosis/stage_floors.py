"""How low the worst stage of a pipeline can go, in words: all of it predicted, none of it of one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from search_spaces.policy import BatchShape
from tuner.diagnosis.least_memory import LeastMemory
from tuner.diagnosis.predicted_sizes import SizePeaks
from tuner.memory_size import format_bytes


def stage_floors_text(
    floors: Sequence[LeastMemory], sizes: Sequence[SizePeaks], plain: BatchShape, cap_bytes: int
) -> Iterator[str]:
    """The floor at the plain step's size and at the smallest, and the largest sizes that fit.

    Args:
        floors: Predicted, one at each size of the search, the largest first.
        sizes: Of the worst stage, as ``floors``.
        plain: Of the plain step that was measured.
    """
    for floor in floors:
        if floor.policy.batch in (plain, floors[-1].policy.batch) and floor.predicted_peak_bytes is not None:
            batch = floor.policy.batch
            yield (
                f"floor at micro-batch {batch.micro_batch_size} x {batch.gradient_accumulation_steps}: no placement of "
                f"this search is predicted to take less than {format_bytes(floor.predicted_peak_bytes)} on its worst "
                f"stage: {floor.policy.summary()}."
            )
    least = min((size.least_bytes for size in sizes if size.least_bytes is not None), default=None)
    if least is None:
        return
    cap = format_bytes(cap_bytes)
    fits = max(
        (s.micro_batch_size for s in sizes if s.least_bytes is not None and s.least_bytes <= cap_bytes), default=0
    )
    fits_plain = max((size.micro_batch_size for size in sizes if size.plain_bytes <= cap_bytes), default=0)
    if not fits:
        yield (
            f"No placement of this search is predicted to fit into {cap} on each stage: the least is "
            f"{format_bytes(least)}. Use more stages, a larger cap, or an optimizer with fewer states."
        )
        return
    without = f"without recompute {fits_plain}" if fits_plain else "without recompute none fits"
    yield (
        f"The largest micro-batch at which some placement is predicted to fit into {cap} on each stage is {fits}, "
        f"{without}."
    )
