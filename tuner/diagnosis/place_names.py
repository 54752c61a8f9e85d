"""Places of a model in words for tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence

from runners.diagnosis.records import HeldTensors, PlaceMemory

_OWN_CODE = {
    "before": "own code before the blocks",
    "between": "own code between the blocks",
    "after": "own code after the blocks: loss",
    "update": "the optimizer's update",
    "step": "inputs, and made by no operator",
}


def outside_name(place: PlaceMemory) -> str:
    """Of a place outside of blocks."""
    return place.module or _OWN_CODE.get(place.stage or "", "own code of the model")


def tensor_text(held: HeldTensors) -> str:
    """Where a tensor comes from and what it is: ``lm_head: 8 x 128 x 1000 float32 from aten.mm, 3 of them``."""
    where = held.module or _OWN_CODE.get(held.stage or "", "own code of the model")
    shape = " x ".join(map(str, held.shape)) or "scalar"
    count = f", {held.count} of them" if held.count > 1 else ""
    return f"{where}: {shape} {held.dtype} from {held.operator}{count}"


def positions_text(positions: Sequence[int]) -> str:
    """Positions of blocks, runs joined: ``0-3, 5``."""
    runs: list[list[int]] = []
    for position in sorted(positions):
        if runs and position == runs[-1][-1] + 1:
            runs[-1].append(position)
        else:
            runs.append([position])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
