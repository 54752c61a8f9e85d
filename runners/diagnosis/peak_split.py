"""The highest moment of one real step, taken apart: by kind, by place, and by the tensors that are alive then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from runners.devices.base import PeakMemory
from runners.diagnosis.outside import OutsideModules
from runners.diagnosis.places import Place, Places
from runners.diagnosis.records import HeldTensors, PeakSplit, PlaceMemory, Stage
from runners.diagnosis.step_log import LoggedStorage, StepLog, storages_of
from runners.inspection.call_trace import tensors_in
from runners.measure.phases import Phase
from runners.rig import Rig, RigStep
from runners.trial import MemoryByKind
from runners.worker_session import WorkerSession
from search_spaces.policy import RecomputePolicy

#: Groups of alike tensors that are named; the others are small.
_MOST_HELD = 24
#: Micro-batches of the step that is followed: the second one meets complete gradients, as all later ones do.
_MOST_MICRO_BATCHES = 2
_KINDS = tuple(MemoryByKind.model_fields)


@dataclass(frozen=True)
class _Row:
    """What one row of the split is of; as in `PlaceMemory`."""

    blocks: str | None = None
    block: int | None = None
    unit: str | None = None
    module: str | None = None
    stage: Stage | None = None


#: What the step holds without the model: its inputs and what no operator has returned, and what its update makes.
_STEP, _UPDATE = _Row(stage="step"), _Row(stage="update")


def split_peak(rig: Rig, session: WorkerSession, places: Places, policy: RecomputePolicy) -> PeakSplit:
    """Takes steps under the policy and says what the highest moment is made of.

    The device's own figure is the peak. What operators make is followed in a further step, and what is left over is
    what no operator has returned.

    Args:
        rig: Made after the session was settled.
    """
    batches = session.batches(policy)
    with rig.placed(policy):
        peak = session.device.measure_peak(RigStep(rig, batches), live_bytes_before_trial=session.live_bytes)
        step = _FollowedStep(rig, session.device.torch_device, places, batches)
    rows = step.rows()
    unseen = peak.allocated_bytes - sum(kinds.total() for kinds in rows.values())
    rest = _kinds_of_unseen(unseen, rows.values(), peak)
    rows[_STEP] = _sum([rows.get(_STEP, Counter()), rest])
    return PeakSplit(
        policy_summary=policy.summary(),
        micro_batch_size=policy.batch.micro_batch_size,
        gradient_accumulation_steps=policy.batch.gradient_accumulation_steps,
        peak_memory_bytes=peak.allocated_bytes,
        memory_bytes=_memory_bytes(_sum(rows.values())),
        unseen_bytes=unseen,
        places=tuple(_place_memory(row, kinds) for row, kinds in rows.items()),
        held=step.held(),
    )


class _FollowedStep:
    """One step whose storages were followed, and what was alive at its highest moment."""

    def __init__(self, rig: Rig, device: torch.device, places: Places, batches: Sequence[Mapping[str, Any]]) -> None:
        self._rig = rig
        self._device = device
        self._places = places
        self._inputs = tensors_in(list(batches))
        self._first_places: Mapping[str, Place] = {}
        log = StepLog(places, rig.phases, device)
        log.leave_out(tensor for _, _, tensor in self._there_before())
        self._gradients: set[int] = set()
        with log.recording():
            rig.step.run(batches[-_MOST_MICRO_BATCHES:], gradients_ready=self._note_gradients)
        self._complete = max((each.born for each in log.storages if each.phase is Phase.BACKWARD), default=0)
        self._outside = OutsideModules(rig.model, places, log.first_calls, log.num_block_calls)
        self._first_places = log.first_places
        self._alive = log.alive_at_highest()

    def rows(self) -> dict[_Row, Counter[str]]:
        """Bytes by place and kind, in the order of the model."""
        rows: dict[_Row, Counter[str]] = {}
        seen: set[int] = set()
        for kind, place, tensor in self._there_before():
            for storage in storages_of(tensor):
                if storage._cdata not in seen and storage.device.type == self._device.type:
                    seen.add(storage._cdata)
                    row = _STEP if place is None else self._row(place, 0)
                    rows.setdefault(row, Counter())[kind] += storage.nbytes()
        for each in self._alive:
            rows.setdefault(self._row_of(each), Counter())[self._kind_of(each)] += each.num_bytes
        in_order = sorted(rows, key=self._order)
        return {row: rows[row] for row in in_order if rows[row].total()}

    def held(self) -> tuple[HeldTensors, ...]:
        """What the step has made and still holds, alike tensors together, the largest first."""
        groups: dict[tuple[Any, ...], list[LoggedStorage]] = {}
        for each in self._alive:
            stage = self._row_of(each).stage
            module = "" if stage == "update" else each.place.module
            dtype = str(each.dtype).removeprefix("torch.")
            key = (module, stage, each.operator, each.shape, dtype, self._kind_of(each))
            groups.setdefault(key, []).append(each)
        names = ("module", "stage", "operator", "shape", "dtype", "kind")
        held = [
            HeldTensors(
                **dict(zip(names, key, strict=True)), count=len(alike), num_bytes=sum(a.num_bytes for a in alike)
            )
            for key, alike in groups.items()
        ]
        return tuple(sorted(held, key=lambda each: -each.num_bytes)[:_MOST_HELD])

    def _note_gradients(self, model: nn.Module) -> None:
        found = (p.grad for p in model.parameters() if p.grad is not None)
        self._gradients.update(storage._cdata for gradient in found for storage in storages_of(gradient))

    def _there_before(self) -> Iterator[tuple[str, Place | None, torch.Tensor]]:
        """Kind, place and tensor of what is there before the step; the step's own inputs have no place."""
        model, states = self._rig.model, self._rig.optimizer.state
        for name, parameter in model.named_parameters():
            yield "parameters", self._place_of(name), parameter
        for name, buffer in model.named_buffers():
            yield "buffers", self._place_of(name), buffer
        for name, parameter in model.named_parameters():
            yield from (("optimizer_states", self._place_of(name), s) for s in tensors_in(states.get(parameter, {})))
        yield from (("activations", None, tensor) for tensor in self._inputs)
        for name, module in model.named_modules():
            # Tables that modules keep as plain attributes; whatever is kept between steps counts as held for backward.
            tables = [value for value in vars(module).values() if isinstance(value, torch.Tensor)]
            yield from (("activations", self._places.at(name), table) for table in tables)

    def _place_of(self, tensor_name: str) -> Place:
        path = tensor_name.rpartition(".")[0]
        return self._first_places.get(path) or self._places.at(path)

    def _row_of(self, each: LoggedStorage) -> _Row:
        return _UPDATE if each.phase is Phase.OPTIMIZER else self._row(each.place, each.num_block_calls)

    def _row(self, place: Place, num_block_calls: int) -> _Row:
        if place.blocks is not None:
            return _Row(place.blocks, place.block, place.unit)
        module = self._outside.outermost(place.module)
        return _Row(module=module, stage=self._outside.stage(module, num_block_calls))

    def _kind_of(self, each: LoggedStorage) -> str:
        outlives_backward = each.died is None or each.died > self._complete
        if each.key in self._gradients and each.born <= self._complete and outlives_backward:
            return "gradients"
        is_kept = each.left_its_phase and each.phase in (Phase.FORWARD, Phase.RECOMPUTE)
        return "activations" if is_kept else "temporary"

    def _order(self, row: _Row) -> tuple[int, int, int, str]:
        """As forward runs: what comes before the blocks, the lists with what lies between them, the rest."""
        if row.blocks is not None and row.block is not None:
            return 1, self._places.list_paths.index(row.blocks), row.block, row.unit or "~"
        ranks = {"before": 0, "between": 1, "after": 2, "update": 3, "step": 4}
        rank = ranks[row.stage or "before"]
        # The model's own code stands where most of it runs: first before the blocks, last after them.
        position = self._outside.rank(row.module) if row.module else 0 if rank == 0 else self._outside.num_modules
        return rank, len(self._places.list_paths), position, ""


def _kinds_of_unseen(unseen: int, rows: Iterable[Counter[str]], peak: PeakMemory) -> Counter[str]:
    """What no operator has returned, by kind: as the device has it where that is more of each kind, else temporary."""
    if peak.by_kind is not None:
        rest = Counter(peak.by_kind.model_dump())
        rest.subtract(_sum(rows))
        if min(rest.values(), default=0) >= 0:
            return rest
    return Counter({"temporary": unseen})


def _sum(rows: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for kinds in rows:
        total.update(kinds)
    return total


def _memory_bytes(kinds: Counter[str]) -> MemoryByKind:
    return MemoryByKind(**{kind: kinds[kind] for kind in _KINDS})


def _place_memory(row: _Row, kinds: Counter[str]) -> PlaceMemory:
    return PlaceMemory(
        blocks=row.blocks,
        block=row.block,
        unit=row.unit,
        module=row.module,
        stage=row.stage,
        memory_bytes=_memory_bytes(kinds),
    )
