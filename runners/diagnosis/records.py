"""What a diagnosis asks and answers: what memory is made of, and what each unit costs to keep and to rebuild."""

from __future__ import annotations

import math
from typing import Literal

from runners.record import Record
from runners.trial import Answer, MemoryByKind, QuestionSpec, WorkloadSpec
from search_spaces.choices import SearchChoices
from search_spaces.policy import RecomputePolicy

#: Where in the forward pass something outside of blocks runs; the optimizer's update; or that it is the step's own: its
#: inputs, and what no operator has made.
Stage = Literal["before", "between", "after", "update", "step"]


class DiagnosisSpec(QuestionSpec):
    """Asks what memory and time of a plain step are made of.

    Attributes:
        choices: The units, segment sizes and micro-batches to look at.
        floors: Policies whose highest moment is to be taken apart, too.
        only_unit_costs: Nothing else is asked for.
        budget_s: Wall time that unit costs may take: micro-batch sizes that are expected to take longer than what is
            left are left out. None measures all.
    """

    workload: WorkloadSpec
    choices: SearchChoices
    floors: tuple[RecomputePolicy, ...] = ()
    only_unit_costs: bool = False
    budget_s: float | None = None


class UnitCost(Record):
    """What one action does to one block, or to one segment of blocks, measured.

    Attributes:
        blocks: Path of the block list.
        first: Position of the first block of the region. A module that stands at several positions is told at its
            first one, with all its calls.
        last: Position of its last block; the same as ``first`` for every action but ``segment``.
        action: As in a policy; the region takes it, all else keeps everything.
        micro_batch_size: In samples.
        saved_bytes: Bytes alive between forward and backward that the action does away with; negative where it keeps
            more than it drops.
        rebuild_time_s: Seconds that its recompute takes in one micro-batch, the median of a few; of ``offload`` what
            the copies to the host and back take by themselves, whatever hides them.
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


class PlaceMemory(Record):
    """What one part of the model holds at the highest moment of a step.

    Attributes:
        blocks: Path of the list whose block it is; None outside of blocks.
        block: Position in that list.
        unit: Name of the unit; None for a block's other parts.
        module: Outside of blocks the outermost module that holds no block, as a dotted path; empty for code of the
            model itself.
        stage: Outside of blocks.
        memory_bytes: By kind; of the whole model all places add up to the peak.
    """

    blocks: str | None = None
    block: int | None = None
    unit: str | None = None
    module: str | None = None
    stage: Stage | None = None
    memory_bytes: MemoryByKind


class HeldTensors(Record):
    """Tensors alive at the highest moment that are alike.

    Attributes:
        module: Dotted path of the innermost module whose code, or whose backward, has made it; empty for the model's
            own code.
        operator: That made it, for example ``aten.addmm``.
        kind: As in `MemoryByKind`.
        num_bytes: Of all of them.
    """

    module: str
    stage: Stage | None
    operator: str
    shape: tuple[int, ...]
    dtype: str
    kind: str
    count: int
    num_bytes: int


class PeakSplit(Record):
    """The highest moment of one step, taken apart.

    Attributes:
        policy_summary: Of the policy in force.
        peak_memory_bytes: As a trial measures it: bytes allocated.
        memory_bytes: By kind; adds up to the peak.
        unseen_bytes: Part of ``temporary`` or ``activations`` that no operator has returned: scratch within kernels,
            states of the random generators that recompute regions keep.
        places: In the order of the model; add up to the peak.
        held: Made by the step and alive at that moment, the largest first.
        predicted_peak_bytes: From a dry run; None where there is none.
        lowest_among: Which placements that prediction is the lowest of; None where nothing was predicted.
    """

    policy_summary: str
    micro_batch_size: int
    gradient_accumulation_steps: int
    peak_memory_bytes: int
    memory_bytes: MemoryByKind
    unseen_bytes: int
    places: tuple[PlaceMemory, ...]
    held: tuple[HeldTensors, ...]
    predicted_peak_bytes: int | None = None
    lowest_among: Literal["all placements", "one action on all blocks"] | None = None


class AttentionUse(Record):
    """How attention is computed in one forward pass.

    Attributes:
        kernel: The fused operator, or what is run in its place: ``scaled_dot_product_attention (math)`` for torch's
            own fallback, ``softmax`` for a model that multiplies and normalizes by itself.
        is_fused: The weights are never kept for backward.
        modules: Innermost modules that run it.
    """

    kernel: str
    is_fused: bool
    num_calls: int
    modules: tuple[str, ...]


class OwnCheckpoint(Record):
    """Calls of activation checkpointing by the model itself.

    Attributes:
        module: The module that is recomputed, where that can be told, else the one that calls.
        function: That was called.
        use_reentrant: As given; None where it was not.
    """

    module: str
    function: str
    use_reentrant: bool | None
    num_calls: int


class DropoutModules(Record):
    """Dropout modules in train mode that share one probability above 0."""

    p: float
    modules: tuple[str, ...]


class RandomOperator(Record):
    """An operator that draws random numbers in forward."""

    operator: str
    num_calls: int
    modules: tuple[str, ...]


class ModelHabits(Record):
    """What one forward pass shows of how a model behaves.

    Attributes:
        random_streams: Random generators that stand elsewhere after forward than before.
        changed_buffers: Buffers whose values forward has changed.
    """

    attention: tuple[AttentionUse, ...] = ()
    own_checkpoints: tuple[OwnCheckpoint, ...] = ()
    dropout: tuple[DropoutModules, ...] = ()
    random_operators: tuple[RandomOperator, ...] = ()
    random_streams: tuple[str, ...] = ()
    changed_buffers: tuple[str, ...] = ()


class Diagnosis(Answer):
    """What came of it; absent is None, never a stand-in number.

    Attributes:
        plain: The plain step at the largest micro-batch that runs.
        floors: Of the spec's policies, in the same order.
        kept_bytes: Alive between forward and backward of that plain step's micro-batch, made by its forward.
        unit_costs: By micro-batch, the largest first; by block list, action and position.
        sizes_left_out: Micro-batch sizes that the budget did not reach.
    """

    plain: PeakSplit | None = None
    floors: tuple[PeakSplit, ...] = ()
    habits: ModelHabits | None = None
    kept_bytes: int | None = None
    unit_costs: tuple[UnitCost, ...] = ()
    sizes_left_out: tuple[int, ...] = ()
