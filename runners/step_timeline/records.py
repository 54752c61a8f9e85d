"""What a timeline of one step asks and answers: every tensor that is kept for backward, from birth to last use."""

from __future__ import annotations

import enum
from typing import Literal

from runners.record import Record
from runners.trial import Answer, QuestionSpec, WorkloadSpec
from search_spaces.model_shape import ModelShape
from search_spaces.policy import RecomputePolicy

PhaseName = Literal["forward", "backward", "recompute", "optimizer"]


class TensorKind(str, enum.Enum):
    """What a kept tensor is. Only what the step made itself is counted as activations: the first and the last kind.

    HELD is made in forward and alive when backward starts, though no operator saved it: the loss, outputs that the
    model's result refers to, states of random generators that recompute needs, what an autograd function of one's own
    keeps as attributes. ON_HOST is a copy that an offloaded block made on the host; on a CPU it is on the device, too.
    """

    ACTIVATION = "activation"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"
    EXISTING = "existing"
    HELD = "held"
    ON_HOST = "on host"


class Saver(Record):
    """One operator that kept a tensor, or a view of it.

    Attributes:
        module: Dotted path of the innermost module that ran; empty for the model itself.
        operator: As the profiler names it; ``region input`` where a recompute region keeps what it was called with.
        node: The node of the autograd graph that used it; None where none did.
        phase: Kept in forward, or by the rebuild of a region.
        saved_s: Seconds since the step began, and so is ``used_s``.
    """

    module: str
    operator: str
    node: str | None
    phase: PhaseName
    shape: tuple[int, ...]
    dtype: str
    saved_s: float
    used_s: float | None


class KeptTensor(Record):
    """One storage that was kept for backward, whatever number of operators kept views of it.

    Attributes:
        block: Path of the block whose operator kept it first; None outside of all blocks.
        unit: Name of the block's unit; None for the rest of the block.
        num_bytes: Of the whole storage.
        birth_s: Seconds since the step began at which the storage was allocated; None for what was there before.
        born_in: Part of the step in which it was made; None for what was there before.
        made_by: Module and operator that made it, in words; None for what was there before.
        savers: In order of time; empty for held tensors.
        last_use_s: When backward took it for the last time; None where it never did.
        freed_s: When its memory was given back; None where it outlived the step.
    """

    kind: TensorKind
    block: str | None
    unit: str | None
    num_bytes: int
    birth_s: float | None
    born_in: PhaseName | None
    made_by: str | None
    savers: tuple[Saver, ...]
    last_use_s: float | None
    freed_s: float | None


class KeptGroup(Record):
    """What the operators of one unit of one block keep, in tensors that the step made.

    Attributes:
        block: None for all that is outside of blocks.
        num_tensors: Storages kept in forward and alive when backward starts.
        kept_bytes: Of those.
        at_own_backward_bytes: Of those, what is still alive when the block's own backward starts.
        num_recomputed: Storages that a rebuild made and backward used.
        recomputed_bytes: Of those.
        num_on_host: Storages that wait on the host between forward and backward; none of those above.
        on_host_bytes: Of those.
    """

    block: str | None
    unit: str | None
    num_tensors: int
    kept_bytes: int
    at_own_backward_bytes: int
    num_recomputed: int
    recomputed_bytes: int
    num_on_host: int = 0
    on_host_bytes: int = 0


class PhaseSpan(Record):
    """A part of the step; recompute lies inside backward.

    Attributes:
        region: Of a recompute, the region that was rebuilt.
    """

    phase: PhaseName
    start_s: float
    end_s: float
    region: str | None = None


class MemoryCurve(Record):
    """Memory over the step; each value holds from its time to the next.

    Attributes:
        times_s: Ascending, from 0.
        allocated_bytes: All that is alive. Where points were left out, the highest of a stretch stayed.
        kept_bytes: Of it, what operators of all blocks keep for backward, parameters, buffers and inputs not counted.
    """

    times_s: tuple[float, ...]
    allocated_bytes: tuple[int, ...]
    kept_bytes: tuple[int, ...]


class TracedStep(Record):
    """One micro-batch through forward, backward and the update.

    Attributes:
        failure: Why this policy's step has no trace; None where it has one.
        step_time_s: The same step without tracing.
        traced_step_time_s: What all times here are measured on.
        start_bytes: Alive before the step; parameters, buffers, optimizer states and the batch.
        backward_start_bytes: Alive when backward starts.
        peak_memory_bytes: Most bytes alive.
        peak_s: When that was.
        tensors: Those of the blocks that were asked for and those outside of blocks, by time of being kept.
        num_held: Tensors made in forward and alive when backward starts that no operator saved; all of the step.
        held_bytes: Of those. With the groups' kept bytes they are what forward adds to ``start_bytes``; on a CPU, where
            the host is the device, so are the groups' bytes on the host.
        groups: Of all blocks, in the order of the model; what is outside of blocks comes last.
    """

    policy: RecomputePolicy
    failure: str | None = None
    step_time_s: float | None = None
    traced_step_time_s: float | None = None
    start_bytes: int | None = None
    backward_start_bytes: int | None = None
    peak_memory_bytes: int | None = None
    peak_s: float | None = None
    phases: tuple[PhaseSpan, ...] = ()
    curve: MemoryCurve | None = None
    tensors: tuple[KeptTensor, ...] = ()
    groups: tuple[KeptGroup, ...] = ()
    num_held: int = 0
    held_bytes: int = 0


class StepTimelineSpec(QuestionSpec):
    """Asks for the timeline of one micro-batch under a policy.

    Attributes:
        also: Further policies, traced after it in the same process; one that does not fit costs the others nothing.
        shape: Where the model's blocks and units are.
        num_blocks: Tensors of this many blocks of each list, from its first, are told; None tells all.
    """

    workload: WorkloadSpec
    policy: RecomputePolicy
    shape: ModelShape
    also: tuple[RecomputePolicy, ...] = ()
    num_blocks: int | None = 3


class StepTimeline(Answer):
    """What came of it: one traced step per policy, in the order of the spec."""

    steps: tuple[TracedStep, ...] = ()
