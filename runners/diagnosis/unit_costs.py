"""What each block, unit and segment costs to keep and to rebuild: the ablation, measured on the real model."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from runners.devices.base import Device
from runners.diagnosis.ablation_regions import (
    ablation_placements,
    keys_of,
    placement_of,
    positions_of,
    region_names,
    shown_regions,
)
from runners.diagnosis.places import Places
from runners.diagnosis.records import UnitCost
from runners.diagnosis.step_log import StepLog
from runners.diagnosis.unit_effort import Effort, effort_of
from runners.measure.copy_times import HostCopies
from runners.measure.host_copies import measure_host_copies
from runners.measure.phases import Phase
from runners.proof.randomness import seed_everything
from runners.rig import Rig
from runners.worker_session import WorkerSession
from search_spaces.choices import BlockListChoices, SearchChoices
from search_spaces.model_shape import BlockList
from search_spaces.policy import OFFLOAD, BatchShape, RecomputePolicy, Region

#: Steps whose rebuilds are timed under each placement; the figure is their median. Short steps are timed more often,
#: as long as that takes no more seconds than this for all placements of one size; fewer rounds do where time is short.
_MIN_ROUNDS, _MAX_ROUNDS, _ROUNDS_S = 3, 9, 3.0
#: Share of a budget for all sizes that those repetitions may take at one of them.
_ROUNDS_SHARE = 0.25

_Batch = Mapping[str, Any]


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
        return effort_of(self._choices, forward_s, plain.inner_kinds)

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
            keys = keys_of(of_list, plain.inner_kinds(of_list.blocks))
            bytes_of = self._saved_and_moved_bytes(of_list, keys, shape, batch, plain)
            for region in shown_regions(of_list, keys):
                seconds = [times_s[name] for name in region_names(of_list.blocks, region) if name in times_s]
                saved_bytes, moved_bytes = bytes_of[keys[region]]
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
        self,
        of_list: BlockListChoices,
        keys: Mapping[Region, Hashable],
        shape: BatchShape,
        batch: _Batch,
        plain: _KeptByForward,
    ) -> dict[Hashable, tuple[int, int]]:
        """What a region of each key keeps less than the plain block, and what it copies to the host."""
        by_key: dict[Hashable, tuple[int, int]] = {}
        for region, key in keys.items():
            if key not in by_key:
                positions = positions_of(of_list, region)
                everywhere = [replace(region, first=p, last=p + region.num_blocks - 1) for p in positions]
                policy = RecomputePolicy(shape, (placement_of(of_list.blocks, everywhere),), self._preserves_rng)
                self._rig.phases.host_bytes = 0
                kept = self._forward(policy, batch).num_bytes
                num_calls = sum(plain.num_calls[of_list.blocks.path, p] for p in positions)
                num_regions = 0 if region.action == OFFLOAD else max(len(region.unit_names()), 1) * num_calls
                saved_bytes = plain.num_bytes - kept - num_regions * self._rng_bytes
                by_key[key] = saved_bytes, self._rig.phases.host_bytes
        return by_key

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
        policies = [
            RecomputePolicy(shape, placement, self._preserves_rng) for placement in ablation_placements(self._choices)
        ]
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
