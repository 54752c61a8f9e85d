"""What each block, unit and segment costs to keep and to rebuild: the ablation, measured on the real model."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any

import torch

from runners.devices.base import Device
from runners.diagnosis.places import Places
from runners.diagnosis.records import UnitCost
from runners.diagnosis.step_log import StepLog
from runners.measure.copy_times import HostCopies
from runners.measure.host_copies import measure_host_copies
from runners.measure.phases import Phase
from runners.proof.randomness import seed_everything
from runners.rig import Rig
from runners.worker_session import WorkerSession
from search_spaces.actions import kept_by, units_of
from search_spaces.choices import BlockListChoices, SearchChoices
from search_spaces.model_shape import BlockList
from search_spaces.policy import (
    BLOCK,
    OFFLOAD,
    SEGMENT,
    UNIT_JOINER,
    BatchShape,
    BlockListPlacement,
    RecomputePolicy,
    Region,
)
from search_spaces.unit_span import is_spans, parse_spans

#: Steps whose rebuilds are timed under each placement; the figure is their median. Short steps are timed more often,
#: as long as that takes no more seconds than this for all placements of one size; fewer rounds do where time is short.
_MIN_ROUNDS, _MAX_ROUNDS, _ROUNDS_S = 3, 9, 3.0
#: Share of a budget for all sizes that those repetitions may take at one of them.
_ROUNDS_SHARE = 0.25
#: A step with recompute takes about as long as so many forward passes.
_STEP_RATIO = 4
#: Lists up to this long are measured region by region; of longer ones the first, middle and last of each kind.
_MOST_LISTED = 16

_Batch = Mapping[str, Any]


@dataclass(frozen=True)
class Effort:
    """What measuring at one size takes: once, and for each round of timing."""

    once_s: float
    round_s: float

    def seconds(self, num_rounds: int) -> float:
        return self.once_s + num_rounds * self.round_s


class UnitCostMeter:
    """Measures one model; its parameters stay as they are.

    Bytes are those of one forward pass with the region alone, against one without any; of blocks that keep the same
    tensors one stands for all, save for the first and the last. Times are those of the rebuilds themselves, inside
    backward, while all blocks take the action.
    """

    def __init__(self, rig: Rig, session: WorkerSession, places: Places, choices: SearchChoices) -> None:
        self._rig = rig
        self._session = session
        self._places = places
        self._choices = choices

    def kept_bytes(self, shape: BatchShape) -> int:
        """Bytes that the forward pass of a plain micro-batch leaves alive for its backward."""
        return self._forward(RecomputePolicy(shape), self._batch(shape)).num_bytes

    def warm_up(self, shape: BatchShape) -> None:
        """Takes a step, so that nothing is slow for being the first."""
        self._rig.step.accumulate([self._batch(shape)])
        self._rig.step.drop_gradients()

    def effort(self, shape: BatchShape) -> Effort:
        """How long `measure` is going to take, from a single forward pass."""
        batch = self._batch(shape)
        start = time.monotonic()
        plain = self._forward(RecomputePolicy(shape), batch)
        forward_s = time.monotonic() - start
        num_forwards = 1 + sum(len(set(_keys(of_list, plain).values())) for of_list in self._choices.block_lists)
        num_placements = len(list(_placements(self._choices)))
        return Effort(num_forwards * forward_s, _STEP_RATIO * num_placements * forward_s)

    def measure(
        self, shape: BatchShape, *, min_rounds: int = _MIN_ROUNDS, rounds_s: float = _ROUNDS_S
    ) -> list[UnitCost]:
        """Of every list, action and position at one micro-batch size.

        Args:
            min_rounds: How often rebuilds are timed at least.
            rounds_s: Seconds after which that must do.
        """
        batch = self._batch(shape)
        plain = self._forward(RecomputePolicy(shape), batch)
        times_s = self._rebuild_times(shape, batch, min_rounds, rounds_s)
        costs = []
        for of_list in self._choices.block_lists:
            bytes_of = self._saved_and_moved_bytes(of_list, shape, batch, plain)
            for region in _shown(of_list, _keys(of_list, plain)):
                seconds = [times_s[name] for name in _region_names(of_list.blocks, region) if name in times_s]
                saved_bytes, moved_bytes = bytes_of[region]
                if moved_bytes:
                    seconds = [self._host_copies.both_ways_s(moved_bytes)]
                if seconds:  # Without a rebuild nothing was recomputed: no gradient flows there, or it is not called.
                    costs.append(
                        UnitCost(
                            blocks=of_list.blocks.path,
                            first=region.first,
                            last=region.last,
                            action=region.action,
                            micro_batch_size=shape.micro_batch_size,
                            saved_bytes=saved_bytes,
                            rebuild_time_s=sum(seconds),
                        )
                    )
        return costs

    def _batch(self, shape: BatchShape) -> _Batch:
        seed_everything(self._session.spec.seed + 1)
        batch: _Batch = self._session.workload.make_batch(shape.micro_batch_size)
        return batch

    def _saved_and_moved_bytes(
        self, of_list: BlockListChoices, shape: BatchShape, batch: _Batch, plain: _KeptByForward
    ) -> dict[Region, tuple[int, int]]:
        """What each region keeps less than the plain block, and what it copies to the host."""
        by_kind: dict[Hashable, tuple[int, int]] = {}
        for region, key in _keys(of_list, plain).items():
            if key not in by_kind:
                positions = _positions(of_list, region)
                everywhere = [replace(region, first=p, last=p + region.num_blocks - 1) for p in positions]
                policy = RecomputePolicy(shape, (_placement(of_list.blocks, everywhere),), self._preserves_rng)
                self._rig.phases.host_bytes = 0
                kept = self._forward(policy, batch).num_bytes
                num_calls = sum(plain.num_calls[of_list.blocks.path, p] for p in positions)
                num_regions = 0 if region.action == OFFLOAD else max(len(region.unit_names()), 1) * num_calls
                saved_bytes = plain.num_bytes - kept - num_regions * self._rng_bytes
                by_kind[key] = saved_bytes, self._rig.phases.host_bytes
        return {region: by_kind[key] for region, key in _keys(of_list, plain).items()}

    @cached_property
    def _host_copies(self) -> HostCopies:
        return measure_host_copies(self._session.device)

    @property
    def _preserves_rng(self) -> bool:
        return self._choices.rng_choices[0]

    @property
    def _rng_bytes(self) -> int:
        """What each region keeps of the random generators; states are held on the CPU, whatever the device."""
        on_cpu = self._session.device.torch_device.type == "cpu"
        return torch.get_rng_state().nbytes if self._preserves_rng and on_cpu else 0

    def _forward(self, policy: RecomputePolicy, batch: _Batch) -> _KeptByForward:
        rig = self._rig
        log = StepLog(self._places, rig.phases, self._session.device.torch_device)
        tensors = (*rig.model.parameters(), *rig.model.buffers(), *torch.utils._pytree.tree_leaves(batch))
        log.leave_out(tensor for tensor in tensors if isinstance(tensor, torch.Tensor))
        with rig.placed(policy):
            with log.recording(), rig.phases.phase(Phase.FORWARD):
                loss = rig.step.forward(batch)
            kept = _KeptByForward(log)
            del loss
        return kept

    def _rebuild_times(self, shape: BatchShape, batch: _Batch, min_rounds: int, rounds_s: float) -> dict[str, float]:
        """Seconds by the name of a region, under a few placements that between them have every region.

        They take turns, so that a busy moment of the machine does not fall on one of them alone.
        """
        rig, device = self._rig, self._session.device
        policies = [RecomputePolicy(shape, placement, self._preserves_rng) for placement in _placements(self._choices)]
        clocks = [_RebuildClock(device, rig) for _ in policies]
        start = time.monotonic()
        for number in range(_MAX_ROUNDS):
            for policy, clock in zip(policies, clocks, strict=True):
                with rig.placed(policy), rig.phases.watched_by(clock):
                    rig.step.accumulate([batch])
                clock.end_step()
                rig.step.drop_gradients()
            if number + 1 >= min_rounds and time.monotonic() - start > rounds_s:
                break
        times_s: dict[str, float] = {}
        for policy, clock in zip(policies, clocks, strict=True):
            selective = {
                f"{placement.blocks}.{block}": region.action
                for placement in policy.placement
                for region in placement.regions
                for block in range(region.first, region.last + 1)
                if region.keep
            }
            # Of regions by the same name, those of selective actions are told apart by their action.
            times_s |= {
                f"{name} {selective[name]}" if name in selective else name: seconds
                for name, seconds in clock.medians().items()
            }
        return times_s


class _KeptByForward:
    """What a forward pass has left alive.

    Attributes:
        num_calls: Of each block, by its list and position.
    """

    def __init__(self, log: StepLog) -> None:
        alive = [each for each in log.storages if each.died is None]
        self.num_bytes = sum(each.num_bytes for each in alive)
        self.num_calls = log.calls_of_blocks
        self._by_block: defaultdict[tuple[str, int], list[Hashable]] = defaultdict(list)
        for each in alive:
            if each.place.blocks is not None and each.place.block is not None:
                key = (each.operator, each.num_bytes, each.place.unit)
                self._by_block[each.place.blocks, each.place.block].append(key)

    def inner_kinds(self, blocks: BlockList) -> tuple[int, ...]:
        """A number for each block, shape (num_blocks,); equal for those that keep alike tensors."""
        numbers: dict[Hashable, int] = {}
        keys = (tuple(self._by_block[blocks.path, index]) for index in range(blocks.num_blocks))
        return tuple(numbers.setdefault(key, len(numbers)) for key in keys)

    def kinds(self, blocks: BlockList) -> tuple[int, ...]:
        """The same with the first and the last block apart, which have other neighbours."""
        inner = self.inner_kinds(blocks)
        return (-1, *inner[1:-1], -2) if len(inner) > 1 else inner


class _RebuildClock:
    """Times each region's rebuild where it runs."""

    def __init__(self, device: Device, rig: Rig) -> None:
        self._device = device
        self._phases = rig.phases
        self._marks: list[tuple[str, Any, Any]] = []
        self._steps: list[dict[str, float]] = []

    @contextmanager
    def watching(self, phase: Phase) -> Iterator[None]:
        """As a `PhaseWatcher`."""
        name = self._phases.last_recomputed_region
        if phase is not Phase.RECOMPUTE or name is None:
            yield
            return
        start = self._device.mark()
        try:
            yield
        finally:
            self._marks.append((name, start, self._device.mark()))

    def end_step(self) -> None:
        """Adds up the rebuilds of one step: a block that is called twice is rebuilt twice."""
        self._device.synchronize()
        seconds: defaultdict[str, float] = defaultdict(float)
        for name, start, end in self._marks:
            seconds[name] += self._device.elapsed_s(start, end)
        self._marks.clear()
        self._steps.append(seconds)

    def medians(self) -> dict[str, float]:
        names = dict.fromkeys(name for step in self._steps for name in step)
        return {name: statistics.median(step.get(name, 0.0) for step in self._steps) for name in names}


def measure_sizes(
    meter: UnitCostMeter, shapes: Sequence[BatchShape], budget_s: float | None
) -> tuple[list[UnitCost], list[int]]:
    """Costs at each size, in order, and the sizes that are expected to take longer than what is left of the budget."""
    start = time.monotonic()
    costs: list[UnitCost] = []
    left_out: list[int] = []
    if budget_s is not None:
        meter.warm_up(shapes[-1])
    for shape in shapes:
        if budget_s is None:
            costs += meter.measure(shape)
            continue
        effort = meter.effort(shape)
        left_s = budget_s - (time.monotonic() - start)
        num_rounds = next((n for n in range(_MIN_ROUNDS, 0, -1) if effort.seconds(n) <= left_s), 0)
        if num_rounds:
            costs += meter.measure(shape, min_rounds=num_rounds, rounds_s=min(_ROUNDS_S, _ROUNDS_SHARE * budget_s))
        else:
            left_out.append(shape.micro_batch_size)
    return costs, left_out


def _regions(of_list: BlockListChoices) -> Iterator[Region]:
    """Every region of the ablation: one block each, or one segment; a module's first position stands for all."""
    blocks = of_list.blocks
    for action in _actions(of_list):
        yield from (Region(positions[0], positions[0], action) for positions in of_list.modules)
    for size in of_list.segment_sizes:
        if size > 1:
            whole = Region(0, blocks.num_blocks - 1, SEGMENT, size)
            yield from (Region(a, b, SEGMENT, b - a + 1) for a, b in whole.segments() if b > a)


def _keys(of_list: BlockListChoices, plain: _KeptByForward) -> dict[Region, Hashable]:
    """Every region, with a key that is equal for those that save alike."""
    kinds, inner_kinds = plain.kinds(of_list.blocks), plain.inner_kinds(of_list.blocks)
    keys: dict[Region, Hashable] = {}
    for region in _regions(of_list):
        # What a unit keeps depends on nothing outside of its block.
        alike = inner_kinds if region.unit_names() else kinds
        keys[region] = (region.action, region.segment_size, alike[region.first : region.last + 1])
    return keys


def _positions(of_list: BlockListChoices, region: Region) -> tuple[int, ...]:
    """Where the region begins: at each position of the module that it is of."""
    if region.action == SEGMENT:
        return (region.first,)
    return next(positions for positions in of_list.modules if positions[0] == region.first)


def _actions(of_list: BlockListChoices) -> list[str]:
    """Each unit, units joined as the search joins them, what it keeps of operators, and the whole block."""
    units = sorted(of_list.blocks.unit_names)
    joined = [action for action in of_list.actions if len(units_of(action)) > 1] or [
        UNIT_JOINER.join(group) for group in _apart(of_list.blocks) if len(group) > 1
    ]
    moved = [OFFLOAD] if OFFLOAD in of_list.actions else []
    return [*units, *joined, *filter(kept_by, of_list.actions), *moved, BLOCK]


def _apart(blocks: BlockList) -> list[list[str]]:
    """The units in as few groups as need be, so that no two of a group share a part of the block."""
    groups: list[list[str]] = []
    for unit in sorted(blocks.unit_names):
        sharing = {name for pair in blocks.overlaps if unit in pair for name in pair}
        group = next((group for group in groups if not sharing.intersection(group)), None)
        if group is None:
            groups.append([unit])
        else:
            group.append(unit)
    return groups


def _shown(of_list: BlockListChoices, keys: Mapping[Region, Hashable]) -> Iterator[Region]:
    """All regions of a short list; of a long one the first, middle and last of those that save alike."""
    alike: defaultdict[Hashable, list[Region]] = defaultdict(list)
    for region, key in keys.items():
        alike[key].append(region)
    for regions in alike.values():
        if of_list.blocks.num_blocks <= _MOST_LISTED:
            yield from regions
        else:
            yield from dict.fromkeys((regions[0], regions[len(regions) // 2], regions[-1]))


def _placements(choices: SearchChoices) -> Iterator[tuple[BlockListPlacement, ...]]:
    """Few placements of all lists at once that hold each region of the ablation."""
    lists = choices.block_lists
    groups = [[UNIT_JOINER.join(group) for group in _apart(of_list.blocks)] for of_list in lists]
    kept = [list(filter(kept_by, of_list.actions)) for of_list in lists]
    for turn in zip_longest(*([*of_units, *of_kept] for of_units, of_kept in zip(groups, kept, strict=True))):
        yield tuple(_everywhere(of_list.blocks, action or BLOCK) for of_list, action in zip(lists, turn, strict=True))
    yield tuple(_everywhere(of_list.blocks, BLOCK) for of_list in lists)
    for size in sorted({size for of_list in lists for size in of_list.segment_sizes if size > 1}):
        yield tuple(_everywhere(of_list.blocks, SEGMENT, size) for of_list in lists if size in of_list.segment_sizes)


def _everywhere(blocks: BlockList, action: str, segment_size: int | None = None) -> BlockListPlacement:
    return _placement(blocks, [Region(0, blocks.num_blocks - 1, action, segment_size)])


def _placement(blocks: BlockList, regions: Sequence[Region]) -> BlockListPlacement:
    return BlockListPlacement(blocks.path, blocks.num_blocks, blocks.units, tuple(regions))


def _region_names(blocks: BlockList, region: Region) -> Iterator[str]:
    """As the recompute regions call themselves."""
    first = f"{blocks.path}.{region.first}"
    if region.action == SEGMENT:
        yield f"{first} to {blocks.path}.{region.last}"
    elif region.action == BLOCK:
        yield first
    elif region.keep:
        yield f"{first} {region.action}"
    else:
        paths = dict(blocks.units)
        for unit in region.unit_names():
            spans = parse_spans(paths[unit]) if is_spans(paths[unit]) else [paths[unit]]
            yield from (f"{first}.{part}" for part in spans)
