"""Dry runs of a few policies -> the profile that the peak of every policy is computed from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from runners.block_lists import container_at
from runners.dry_run.cell_plan import traced_placements
from runners.dry_run.dry_run import DryRun
from runners.dry_run.profile_check import checked
from runners.dry_run.step_trace import StepTrace, StretchKey, TracedStretch
from search_spaces.cell_profiles import joined
from search_spaces.choices import SearchChoices
from search_spaces.memory_profile import Cell, ListProfile, MemoryProfile, Moment, StepProfile, Stretch
from search_spaces.policy import NONE, SEGMENT, BatchShape, BlockListPlacement, RecomputePolicy, Region

#: Micro-batch sizes that are traced at most.
_MAX_SIZES = 4


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
    try:
        steps = _Tracer(dry_run, choices).steps(batches)
    except UnevenTraceError as error:
        return replace(profile, refusal=str(error))
    return checked(replace(profile, steps=steps), dry_run, choices)


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
    chosen = {
        min(
            accumulating, key=lambda batch: abs(batch.micro_batch_size / low - (high / low) ** (step / (num_lines - 1)))
        )
        for step in range(num_lines)
    }
    return sorted([*chosen, *single], key=lambda batch: batch.micro_batch_size)


class _Tracer:
    """Traces the plain step and the mixed ones, and takes them apart."""

    def __init__(self, dry_run: DryRun, choices: SearchChoices) -> None:
        self._dry_run = dry_run
        self._choices = choices
        self._paths = [each.blocks.path for each in choices.block_lists]

    def steps(self, batches: Sequence[BatchShape]) -> tuple[StepProfile, ...]:
        plain = [self._trace(batch, ()) for batch in batches]
        _refuse_turns(plain[0])
        for trace in plain[1:]:
            _refuse_other_order(plain[0], trace)
        classes = [_classes_of(plain, index) for index in range(len(self._paths))]
        rows = self._rows(plain[0], classes)
        steps = []
        for batch, trace in zip(batches, plain, strict=True):
            mixed = [(row, self._trace(batch, row)) for row in rows]
            steps.append(self._step(batch, trace, classes, mixed))
        return tuple(steps)

    def _trace(self, batch: BatchShape, placement: tuple[BlockListPlacement, ...]) -> StepTrace:
        policy = RecomputePolicy(batch, placement, self._choices.rng_choices[0])
        return self._dry_run.trace(policy, self._paths)

    def _rows(self, plain: StepTrace, classes: Sequence[tuple[int, ...]]) -> list[tuple[BlockListPlacement, ...]]:
        """Placements of all lists at once; as many as the list needs that needs most."""
        per_list = []
        for choices, calls, kinds in zip(self._choices.block_lists, plain.calls, classes, strict=True):
            of_module = [
                tuple(kind for position, kind in zip(calls, kinds, strict=True) if position in positions)
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
        mixed: Sequence[tuple[tuple[BlockListPlacement, ...], StepTrace]],
    ) -> StepProfile:
        for row, trace in mixed:
            _refuse_changes(plain, trace, [(self._paths.index(placement.blocks), placement) for placement in row])
        lists = []
        for index, path in enumerate(self._paths):
            cells = dict(_cells(plain, index, classes[index], (), plain))
            for row, trace in mixed:
                regions = next((p.regions for p in row if p.blocks == path), ())
                for key, cell in _cells(trace, index, classes[index], regions, plain):
                    cells.setdefault(key, cell)
            blocks = _blocks(self._dry_run.model, path)
            lists.append(
                ListProfile(path, plain.calls[index], classes[index], tuple(cells.values()), _parameter_bytes(blocks))
            )
        return StepProfile(
            batch.micro_batch_size,
            plain.accumulates,
            plain.static_bytes,
            tuple(map(_moment, plain.stretches)),
            tuple(lists),
            self._dry_run.totals(batch.micro_batch_size).update,
        )


def _classes_of(plain: Sequence[StepTrace], list_index: int) -> tuple[int, ...]:
    """Class of each call of a block: equal for those that do the same at every size."""
    numbers: dict[tuple[Stretch, ...], int] = {}
    by_size = [_by_key(trace) for trace in plain]
    return tuple(
        numbers.setdefault(
            tuple(stretch for stretches in by_size for stretch in _of_call(stretches, list_index, call)), len(numbers)
        )
        for call in range(len(plain[0].calls[list_index]))
    )


def _cells(
    trace: StepTrace, list_index: int, classes: tuple[int, ...], regions: Sequence[Region], plain: StepTrace
) -> Iterator[tuple[tuple[tuple[int, ...], str], Cell]]:
    """Every cell of one list in a trace."""
    stretches, plain_stretches = _by_key(trace), _by_key(plain)
    segments = {r.first: r.num_blocks for r in regions if r.action == SEGMENT}
    actions = {block: r.action for r in regions for block in range(r.first, r.last + 1)}
    call = 0
    while call < len(classes):
        block = trace.calls[list_index][call]
        length = segments.get(block, 1)
        of_calls = [_of_call(stretches, list_index, each) for each in range(call, call + length)]
        forward, backward = [pair[0] for pair in of_calls], [pair[1] for pair in reversed(of_calls)]
        # What a plain block releases there is part of the fixed stretch in which it happens.
        lingering = sum(
            stretches[key].released_bytes - plain_stretches[key].released_bytes
            for key in (StretchKey("forward", list_index, each, False) for each in range(call, call + length))
        )
        key = (classes[call : call + length], actions.get(block, NONE))
        # A block leaves behind what lingers; the timeline counts it apart.
        kept = joined(forward)
        kept = replace(kept, delta_bytes=kept.delta_bytes - lingering)
        yield key, Cell(*key, kept, joined(backward), lingering)
        call += length


def _by_key(trace: StepTrace) -> dict[StretchKey, TracedStretch]:
    return {traced.key: traced for traced in trace.stretches}


def _of_call(stretches: dict[StretchKey, TracedStretch], list_index: int, call: int) -> tuple[Stretch, Stretch]:
    forward = stretches.get(StretchKey("forward", list_index, call, False))
    backward = stretches.get(StretchKey("backward", list_index, call, True))
    nothing = Stretch(0, 0)
    return (nothing if forward is None else forward.stretch), (nothing if backward is None else backward.stretch)


def _moment(traced: TracedStretch) -> Moment:
    key = traced.key
    if key.list_index is None:
        return Moment("fixed", traced.stretch)
    return Moment(key.part, None, key.list_index, key.call)


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


def _parameter_bytes(blocks: Sequence[nn.Module]) -> tuple[int, ...]:
    seen: set[int] = set()
    sizes = []
    for block in blocks:
        new = [p for p in block.parameters() if id(p) not in seen]
        seen.update(map(id, new))
        sizes.append(sum(p.nbytes for p in new))
    return tuple(sizes)
