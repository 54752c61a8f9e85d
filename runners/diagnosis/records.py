"""What a diagnosis asks and answers: what memory is made of, and what each unit costs to keep and to rebuild."""

from __future__ import annotations

import math

from runners.trial import Answer, MemoryByKind, QuestionSpec, Record, WorkloadSpec
from search_spaces.choices import SearchChoices


class DiagnosisSpec(QuestionSpec):
    """Asks what memory and time of a plain step are made of.

    Attributes:
        choices: The units, segment sizes and micro-batches to look at.
    """

    workload: WorkloadSpec
    choices: SearchChoices


class UnitCost(Record):
    """What one action does to one block, or to one segment of blocks, measured.

    Attributes:
        blocks: Path of the block list.
        first: Position of the first block of the region.
        last: Position of its last block; the same as ``first`` for every action but ``segment``.
        action: As in a policy; the region takes it, all else keeps everything.
        micro_batch_size: In samples.
        saved_bytes: Bytes alive between forward and backward that the action does away with; negative where it keeps
            more than it drops.
        rebuild_time_s: Seconds that its recompute takes in one micro-batch; the median of a few.
    """

    blocks: str
    first: int
    last: int
    action: str
    micro_batch_size: int
    saved_bytes: int
    rebuild_time_s: float

    @property
    def saved_bytes_per_ms(self) -> float:
        """What the table is sorted by; infinite for what is saved without a rebuild."""
        return math.inf if self.rebuild_time_s == 0 else self.saved_bytes / (self.rebuild_time_s * 1e3)


class Diagnosis(Answer):
    """What came of it; absent is None, never a stand-in number.

    Attributes:
        micro_batch_size: Of the plain step whose peak ``memory_bytes`` splits; the largest that ran.
        unit_costs: By micro-batch, block list, position and action.
    """

    micro_batch_size: int | None = None
    memory_bytes: MemoryByKind | None = None
    unit_costs: tuple[UnitCost, ...] = ()
