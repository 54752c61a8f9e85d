"""Dry runs of a few policies -> the profile that the peak of every policy is computed from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from runners.dry_run.cell_plan import traced_placements
from runners.dry_run.dry_run import DryRun
from runners.dry_run.profile_check import checked
from runners.dry_run.step_trace import StepTrace, StretchKey, TracedStretch
from runners.inspection.block_lists import container_at
from search_spaces.cell_profiles import joined
from search_spaces.choices import SearchChoices
from search_spaces.memory_profile import Cell, ListProfile, MemoryProfile, Moment, StepProfile, Stretch
from search_spaces.policy import NONE, SEGMENT, BatchShape, BlockListPlacement, RecomputePolicy, Region

#: Micro-batch sizes that are traced at most.
_MAX_SIZES = 4
#: Difference between blocks, over the peak of the step, below which one stands for the other where it is placed.
_NEGLIGIBLE_RATIO = 0.0025


class UnevenTraceError(Exception):
    """The step is no row of stretches that each depend on their own block's placement alone; one line says why."""


def profile_model(dry_run: DryRun, choices: SearchChoices) -> MemoryProfile:
    """What a search needs to know of a model's memory, checked on policies that were not traced for it.

    Raises:
        NoDryRunError: The model asks for values.
    """
    batches = traced_batches(choices.batches)
    totals = dry_run.totals(batches[0].micro_batch_size)
    profile = MemoryProfile(
        totals.parameter_bytes,
        totals.gradient_bytes,
        totals.optimizer_state_bytes,
        steps=(),
        rng_state_bytes=torch.get_rng_state().nbytes,
        preserve_rng_state=choices.rng_choices[0],
    )
    tracer = _Tracer(dry_run, choices)
    try:
        steps = tracer.steps(batches)
        first_steps = tracer.steps(first_batches(choices))
    except UnevenTraceError as error:
        return replace(profile, refusal=str(error), unseen_kernels=dry_run.unseen_kernels)
    profile = replace(profile, steps=steps, first_steps=first_steps, unseen_kernels=dry_run.unseen_kernels)
    return checked(profile, dry_run, choices)


def traced_batches(batches: Sequence[BatchShape]) -> list[BatchShape]:
    """The sizes to trace, ascending; all where they are few.

    The size without accumulation keeps no gradients from before, so it is no line's end and always traced. Of the
    others the smallest, the largest and those nearest to equal ratios between: where memory bends with the size
    (weights outweigh activations below, activations weights above) a straight line between sizes errs by a ratio, too.
    """
    ascending = sorted(batches, key=lambda batch: batch.micro_batch_size)
    if len(ascending) <= _MAX_SIZES:
        return ascending
    accumulating = [batch for batch in ascending if batch.gradient_accumulation_steps > 1]
    single = [batch for batch in ascending if batch.gradient_accumulation_steps == 1]
    num_lines = _MAX_SIZES - len(single)
    low, high = accumulating[0].micro_batch_size, accumulating[-1].micro_batch_size
    targets = [math.log(low) + (math.log(high) - math.log(low)) * step / (num_lines - 1) for step in range(num_lines)]
    chosen = {min(accumulating, key=lambda b: abs(math.log(b.micro_batch_size) - target)) for target in targets}
    return sorted([*chosen, *single], key=lambda batch: batch.micro_batch_size)


def first_batches(choices: SearchChoices) -> list[BatchShape]:
    """Single micro-batches as the first of a step, where a stage of a pipeline holds all of a step at once."""
    if not choices.stage_borders:
        return []
    num_stages = len(choices.stage_borders) + 1
    sizes = [b.micro_batch_size for b in choices.batches if b.gradient_accumulation_steps <= num_stages]
    return [BatchShape.split(global_batch_size=size, micro_batch_size=size) for size in sorted(sizes)]


class _Tracer:
    """Traces the plain step and the mixed ones, and takes them apart."""

    def __init__(self, dry_run: DryRun, choices: SearchChoices) -> None:
        self._dry_run = dry_run
        self._choices = choices
        self._paths = [each.blocks.path for each in choices.block_lists]

    def steps(self, batches: Sequence[BatchShape]) -> tuple[StepProfile, ...]:
        if not batches:
            return ()
        plain = [self._trace(batch, ()) for batch in batches]
        _refuse_turns(plain[0])
        for trace in plain[1:]:
            _refuse_other_order(plain[0], trace)
        classes = [_classes_of(plain, index) for index in range(len(self._paths))]
        groups = [alike_classes(plain, index, kinds) for index, kinds in enumerate(classes)]
        rows = self._rows(plain[0], classes, groups)
        steps = []
        for batch, trace in zip(batches, plain, strict=True):
            mixed = [(row, self._trace(batch, row, trace)) for row in rows]
            steps.append(self._step(batch, trace, classes, groups, mixed))
        return tuple(steps)

    def _trace(
        self, batch: BatchShape, placement: tuple[BlockListPlacement, ...], plain: StepTrace | None = None
    ) -> StepTrace:
        policy = RecomputePolicy(batch, placement, self._choices.rng_choices[0])
        return self._dry_run.trace(policy, self._paths, plain=plain)

    def _rows(
        self, plain: StepTrace, classes: Sequence[tuple[int, ...]], groups: Sequence[dict[int, int]]
    ) -> list[tuple[BlockListPlacement, ...]]:
        """Placements of all lists at once; as many as the list needs that needs most."""
        per_list = []
        for choices, calls, kinds, group in zip(self._choices.block_lists, plain.calls, classes, groups, strict=True):
            of_module = [
                tuple(group[kind] for position, kind in zip(calls, kinds, strict=True) if position in positions)
                for positions in choices.modules
            ]
            per_list.append(traced_placements(choices, of_module))
        num_rows = max(map(len, per_list), default=0)
        return [tuple(rows[row] for rows in per_list if row < len(rows)) for row in range(num_rows)]

    def _step(
        self,
        batch: BatchShape,
        plain: StepTrace,
        classes: Sequence[tuple[int, ...]],
        groups: Sequence[dict[int, int]],
        mixed: Sequence[tuple[tuple[BlockListPlacement, ...], StepTrace]],
    ) -> StepProfile:
        for row, trace in mixed:
            _refuse_changes(plain, trace, [(self._paths.index(placement.blocks), placement) for placement in row])
        lists = []
        for index, path in enumerate(self._paths):
            cells = dict(_cells(plain, index, classes[index], ()))
            for row, trace in mixed:
                regions = next((p.regions for p in row if p.blocks == path), ())
                for key, cell in _cells(trace, index, classes[index], regions):
                    cells.setdefault(key, cell)
            _share_cells(cells, groups[index])
            blocks = _blocks(self._dry_run.model, path)
            lists.append(
                ListProfile(
                    path,
                    plain.calls[index],
                    classes[index],
                    tuple(cells.values()),
                    parameter_bytes=_parameter_bytes(blocks),
                    gradient_bytes=_parameter_bytes(blocks, trainable=True),
                )
            )
        return StepProfile(
            batch.micro_batch_size,
            plain.accumulates,
            plain.static_bytes,
            _moments(plain),
            tuple(lists),
            self._dry_run.totals(batch.micro_batch_size).update,
        )


def _classes_of(plain: Sequence[StepTrace], list_index: int) -> tuple[int, ...]:
    """Class of each call of a block: equal for those that do the same at every size.

    Where blocks save their own outputs, nobody else may save the last one's: that one is by itself.
    """
    numbers: dict[tuple[object, ...], int] = {}
    by_size = [_by_key(trace) for trace in plain]
    num_calls = len(plain[0].calls[list_index])
    classes = []
    for call in range(num_calls):
        is_apart = plain[0].keeps_output[list_index] and call == num_calls - 1
        does = [stretch for stretches in by_size for stretch in _of_call(stretches, list_index, call)]
        classes.append(numbers.setdefault((is_apart, *does), len(numbers)))
    return tuple(classes)


def alike_classes(plain: Sequence[StepTrace], list_index: int, classes: tuple[int, ...]) -> dict[int, int]:
    """Class -> the class that stands for it where a block is placed.

    The most frequent class stands for those whose blocks, all together, differ from it by less than matters. The usual
    case is a first block whose input the parent holds on to; without this, every action would need a trace of its own.
    """
    if not classes:
        return {}
    counts = Counter(classes)
    frequent = counts.most_common(1)[0][0]
    group = {kind: kind for kind in counts}
    first_calls = {kind: classes.index(kind) for kind in counts}
    for kind, count in counts.items():
        if plain[0].keeps_output[list_index] and kind == classes[-1]:
            continue  # It is apart for what it does when placed.
        differences = []
        for trace in plain:
            stretches = _by_key(trace)
            own = _of_call(stretches, list_index, first_calls[kind])
            other = _of_call(stretches, list_index, first_calls[frequent])
            differences.append(count * max(map(_distance, own, other)) / trace.peak_bytes)
        if max(differences) <= _NEGLIGIBLE_RATIO:
            group[kind] = frequent
    return group


def _distance(stretch: Stretch, other: Stretch) -> int:
    """In bytes."""
    return max(abs(stretch.delta_bytes - other.delta_bytes), abs(stretch.rise_bytes - other.rise_bytes))


def _share_cells(cells: dict[tuple[tuple[int, ...], str], Cell], group: dict[int, int]) -> None:
    """Gives every class the single-block cells that were traced on another class of its group."""
    for kind, leader in group.items():
        for (classes, action), cell in list(cells.items()):
            if len(classes) == 1 and group[classes[0]] == leader:
                cells.setdefault(((kind,), action), replace(cell, classes=(kind,)))


def _cells(
    trace: StepTrace, list_index: int, classes: tuple[int, ...], regions: Sequence[Region]
) -> Iterator[tuple[tuple[tuple[int, ...], str], Cell]]:
    """Every cell of one list in a trace."""
    stretches = _by_key(trace)
    segments = {r.first: r.num_blocks for r in regions if r.action == SEGMENT}
    actions = {block: r.action for r in regions for block in range(r.first, r.last + 1)}
    call = 0
    while call < len(classes):
        block = trace.calls[list_index][call]
        length = segments.get(block, 1)
        of_calls = [_of_call(stretches, list_index, each) for each in range(call, call + length)]
        forward, backward = [pair[0] for pair in of_calls], [pair[1] for pair in reversed(of_calls)]
        keys = (StretchKey("forward", list_index, each, False) for each in range(call, call + length))
        lingering = sum(stretches[key].released_bytes for key in keys)
        key = (classes[call : call + length], actions.get(block, NONE))
        yield key, Cell(*key, joined(forward), joined(backward), lingering)
        call += length


def _by_key(trace: StepTrace) -> dict[StretchKey, TracedStretch]:
    return {traced.key: traced for traced in trace.stretches}


def _of_call(stretches: dict[StretchKey, TracedStretch], list_index: int, call: int) -> tuple[Stretch, Stretch]:
    """Forward, without what it leaves until the end of all forward; and backward."""
    forward = stretches[StretchKey("forward", list_index, call, False)]
    backward = stretches.get(StretchKey("backward", list_index, call, True))
    kept = forward.stretch.delta_bytes - forward.released_bytes
    return replace(forward.stretch, delta_bytes=kept), (Stretch(0, 0) if backward is None else backward.stretch)


def _moments(plain: StepTrace) -> tuple[Moment, ...]:
    """The stretches in order. What blocks release at the end of forward is counted with the blocks, so not there."""
    of_blocks = sum(traced.released_bytes for traced in plain.stretches if traced.key.part == "forward")
    end_of_forward = max(i for i, traced in enumerate(plain.stretches) if not traced.key.in_backward)
    moments = []
    for index, traced in enumerate(plain.stretches):
        key, stretch = traced.key, traced.stretch
        if key.list_index is not None:
            moments.append(Moment(key.part, None, key.list_index, key.call))
        elif index == end_of_forward:
            moments.append(Moment("fixed", replace(stretch, delta_bytes=stretch.delta_bytes + of_blocks)))
        else:
            released, shared = traced.released_bytes, traced.shared_bytes
            moments.append(Moment("fixed", stretch, released_bytes=released, shared_bytes=shared))
    return tuple(moments)


def _refuse_turns(plain: StepTrace) -> None:
    """Refuses a step that comes back to a block: its memory is then no longer one stretch."""
    keys = [traced.key for traced in plain.stretches if traced.key.list_index is not None]
    if len(set(keys)) < len(keys):
        raise UnevenTraceError("backward comes back to a block after another one has run")


def _refuse_other_order(plain: StepTrace, trace: StepTrace, without: frozenset[StretchKey] = frozenset()) -> None:
    """Refuses a step that does not run through the same stretches as another, save those left out."""
    expected = [traced.key for traced in plain.stretches if traced.key not in without]
    if trace.calls != plain.calls or [traced.key for traced in trace.stretches] != expected:
        raise UnevenTraceError(
            "its blocks do not run in the same order in every step, as with layers dropped at random"
        )


def _refuse_changes(plain: StepTrace, trace: StepTrace, row: Sequence[tuple[int, BlockListPlacement]]) -> None:
    """Refuses a step in which more has changed than its placement says.

    Args:
        row: Index of each placed list with its placement.
    """
    placed: set[StretchKey] = set()
    members: set[StretchKey] = set()
    for index, placement in row:
        actions = placement.actions()
        later = {b for r in placement.regions if r.action == SEGMENT for b in range(r.first + 1, r.last + 1)}
        for call, block in enumerate(plain.calls[index]):
            key = StretchKey("backward", index, call, True)
            if actions[block] != NONE:
                placed |= {key, StretchKey("forward", index, call, False)}
            if block in later:
                members.add(key)
    _refuse_other_order(plain, trace, frozenset(members))
    others = [traced for traced in plain.stretches if traced.key not in members]
    for before, after in zip(others, trace.stretches, strict=True):
        if before.key not in placed and before.num_operations != after.num_operations:
            raise UnevenTraceError(
                f"a part of it that no policy touches ran {before.num_operations} operations in one step and "
                f"{after.num_operations} in another"
            )


def _blocks(model: nn.Module | None, path: str) -> tuple[nn.Module, ...]:
    assert model is not None
    return container_at(model.get_submodule(path), path).blocks


def _parameter_bytes(blocks: Sequence[nn.Module], *, trainable: bool = False) -> tuple[int, ...]:
    """Of each block, what others before it have not; or of those alone that get a gradient, which is as large."""
    seen: set[int] = set()
    sizes = []
    for block in blocks:
        new = [p for p in block.parameters() if id(p) not in seen and (p.requires_grad or not trainable)]
        seen.update(map(id, new))
        sizes.append(sum(p.nbytes for p in new))
    return tuple(sizes)
