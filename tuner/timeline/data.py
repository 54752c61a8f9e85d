"""A traced step as what is drawn of it: a bar per kept tensor, grouped by blocks, and the curve of memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from runners.step_timeline.records import KeptTensor, PhaseName, TensorKind, TracedStep
from tuner.memory_size import BYTES_PER_UNIT, format_bytes

_BYTES_PER_MIB, _MS_PER_S = BYTES_PER_UNIT["MiB"], 1000.0
#: Operators that are named on hover; one storage may have views in dozens.
_MAX_SAVERS = 5
#: A held tensor of a smaller share of what forward keeps (a number, a state of a generator) is in the table only.
_LEAST_HELD_RATIO = 0.01

OUTSIDE = "outside of blocks"
REST = "rest of the block"
HELD = "held, saved by no operator"

#: Fills of the page, as its stylesheet names them. Attention and MLP are colored as where placements are drawn.
UNIT_HUES = {"attention": "sky", "mlp": "amber", REST: "lilac", OUTSIDE: "sand", HELD: "none"}
_OTHER_HUES = ("teal", "green", "yellow")


@dataclass(frozen=True)
class TensorBar:
    """One kept tensor: where it is drawn, as what, and what the reader is told of it, line by line.

    Attributes:
        start_ms: Birth, or 0 for what was there before the step.
        used_ms: End of its last use in backward, or of its life where nothing used it.
        end_ms: When its memory was given back.
        kind: Name in the legend: a unit, or what stands for none.
    """

    row: int
    start_ms: float
    used_ms: float
    end_ms: float
    kind: str
    is_rebuilt: bool
    is_on_host: bool
    label: str
    hover: tuple[str, ...]


@dataclass(frozen=True)
class RowGroup:
    """Rows of one block, or of what runs outside of blocks before or after it; both ends included."""

    name: str
    first: int
    last: int


@dataclass(frozen=True)
class TimelineData:
    """Everything the figure of one step shows; times in ms since the step began, memory in MiB.

    Attributes:
        kinds: Names of the legend with the page's fills, in the order in which they occur.
        start_mib: Alive before the step.
    """

    bars: tuple[TensorBar, ...]
    groups: tuple[RowGroup, ...]
    kinds: tuple[tuple[str, str], ...]
    phases: tuple[tuple[PhaseName, float, float, str], ...]
    times_ms: tuple[float, ...]
    allocated_mib: tuple[float, ...]
    kept_mib: tuple[float, ...]
    start_mib: float
    peak_ms: float
    peak_mib: float
    end_ms: float


@dataclass(frozen=True)
class TimelineScales:
    """What several figures share, so that they can be laid side by side."""

    end_ms: float
    most_mib: float


def timeline_data(step: TracedStep) -> TimelineData:
    """What to draw for a step that has a trace."""
    assert step.curve is not None
    assert step.peak_s is not None
    assert step.traced_step_time_s is not None
    end_ms = step.traced_step_time_s * _MS_PER_S
    groups = _row_groups(step)
    bars: list[TensorBar] = []
    named: list[RowGroup] = []
    for name, tensors in groups:
        named.append(RowGroup(name, len(bars), len(bars) + len(tensors) - 1))
        for tensor in tensors:
            bars.append(_bar(tensor, len(bars), end_ms))
    return TimelineData(
        bars=tuple(bars),
        groups=tuple(named),
        kinds=tuple(_kinds(bars)),
        phases=tuple(
            (span.phase, span.start_s * _MS_PER_S, span.end_s * _MS_PER_S, span.region or "") for span in step.phases
        ),
        times_ms=tuple(time_s * _MS_PER_S for time_s in step.curve.times_s),
        allocated_mib=tuple(size / _BYTES_PER_MIB for size in step.curve.allocated_bytes),
        kept_mib=tuple(size / _BYTES_PER_MIB for size in step.curve.kept_bytes),
        start_mib=(step.start_bytes or 0) / _BYTES_PER_MIB,
        peak_ms=step.peak_s * _MS_PER_S,
        peak_mib=(step.peak_memory_bytes or 0) / _BYTES_PER_MIB,
        end_ms=end_ms,
    )


def common_scales(steps: Sequence[TimelineData]) -> TimelineScales:
    return TimelineScales(
        end_ms=max(step.end_ms for step in steps), most_mib=1.12 * max(step.peak_mib for step in steps)
    )


def counts_as_drawn(tensor: KeptTensor, least_held_bytes: float) -> bool:
    """Parameters, buffers and inputs are no rows: they are alive all the time, whatever is kept."""
    if tensor.kind is TensorKind.HELD:
        return tensor.num_bytes >= least_held_bytes
    return tensor.kind in (TensorKind.ACTIVATION, TensorKind.ON_HOST)


def kind_of(tensor: KeptTensor) -> str:
    """What a tensor is in the legend."""
    if tensor.kind is TensorKind.HELD:
        return HELD
    return OUTSIDE if tensor.block is None else tensor.unit or REST


def tensor_facts(tensor: KeptTensor) -> tuple[str, ...]:
    """All that is known of a tensor, line by line, the most telling first."""
    savers = [
        f"{saver.module or 'the model'}: {saver.operator} keeps {list(saver.shape)} {saver.dtype}"
        f"{f', for {saver.node}' if saver.node else ''}{' (rebuild)' if saver.phase == 'recompute' else ''}"
        for saver in tensor.savers
    ]
    more = len(savers) - _MAX_SAVERS
    where = OUTSIDE if tensor.block is None else f"{tensor.block}, {tensor.unit or REST}"
    return (
        f"{format_bytes(tensor.num_bytes)} {tensor.kind.value}, {where}",
        *savers[:_MAX_SAVERS],
        *([f"and {more} more"] if more > 0 else []),
        *([f"made by {tensor.made_by}, in {tensor.born_in}"] if tensor.made_by else ["there before the step"]),
        _life(tensor),
    )


def _life(tensor: KeptTensor) -> str:
    saved_s = min((saver.saved_s for saver in tensor.savers), default=None)
    moments = (("born", tensor.birth_s), ("kept", saved_s), ("last use", tensor.last_use_s), ("freed", tensor.freed_s))
    told = [f"{name} {time_s * _MS_PER_S:.2f} ms" for name, time_s in moments if time_s is not None]
    return ", ".join([*told, *([] if tensor.freed_s is not None or tensor.birth_s is None else ["outlives the step"])])


def _row_groups(step: TracedStep) -> list[tuple[str, list[KeptTensor]]]:
    """The rows from top to bottom: blocks in order, and around them what runs outside, as forward goes."""
    least_held_bytes = _LEAST_HELD_RATIO * ((step.backward_start_bytes or 0) - (step.start_bytes or 0))
    drawn = [tensor for tensor in step.tensors if counts_as_drawn(tensor, least_held_bytes)]
    blocks: dict[str, list[KeptTensor]] = {group.block: [] for group in step.groups if group.block is not None}
    outside = []
    for tensor in drawn:
        if tensor.block is None:
            outside.append(tensor)
        else:
            blocks[tensor.block].append(tensor)
    groups: list[tuple[str, list[KeptTensor]]] = []
    for block, tensors in blocks.items():
        if tensors:
            start_s = min(map(_first_moment, tensors))
            before = [tensor for tensor in outside if _first_moment(tensor) < start_s]
            outside = [tensor for tensor in outside if _first_moment(tensor) >= start_s]
            groups += [(OUTSIDE, before)] if before else []
            groups.append((block, tensors))
    return [*groups, (OUTSIDE, outside)] if outside else groups


def _first_moment(tensor: KeptTensor) -> float:
    return min([saver.saved_s for saver in tensor.savers], default=tensor.birth_s or 0.0)


def _bar(tensor: KeptTensor, row: int, end_ms: float) -> TensorBar:
    freed_ms = end_ms if tensor.freed_s is None else tensor.freed_s * _MS_PER_S
    used_ms = freed_ms if tensor.last_use_s is None else tensor.last_use_s * _MS_PER_S
    return TensorBar(
        row=row,
        start_ms=(tensor.birth_s or 0.0) * _MS_PER_S,
        used_ms=used_ms,
        end_ms=max(freed_ms, used_ms),
        kind=kind_of(tensor),
        is_rebuilt=tensor.born_in in ("recompute", "backward"),
        is_on_host=tensor.kind is TensorKind.ON_HOST,
        label=_label(tensor),
        hover=tensor_facts(tensor),
    )


def _label(tensor: KeptTensor) -> str:
    """For inside the bar: module below its block, operator, size."""
    size = format_bytes(tensor.num_bytes) + (" on the host" if tensor.kind is TensorKind.ON_HOST else "")
    if not tensor.savers:
        return f"{tensor.made_by}, {size}"
    saver = tensor.savers[0]
    module = saver.module.removeprefix(f"{tensor.block}.") if tensor.block else saver.module
    name = "" if module == tensor.block else module
    return f"{name} {saver.operator.removeprefix('aten::')}, {size}".strip()


def _kinds(bars: Iterable[TensorBar]) -> Iterator[tuple[str, str]]:
    others = iter(_OTHER_HUES * len(list(bars)))
    for kind in dict.fromkeys(bar.kind for bar in bars):
        yield kind, UNIT_HUES.get(kind) or next(others)
