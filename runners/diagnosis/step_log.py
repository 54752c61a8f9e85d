"""Every storage that a real step makes: what made it and where, how large it is, and when it is let go."""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from runners.diagnosis.places import Place, Places, PlaceStack
from runners.measure.phases import Phase, PhaseSwitch

#: Nodes that add up gradients have the highest number there is; they belong to whatever runs before them.
_LAST_SEQUENCE_NUMBER = 2**63


@dataclass(eq=False)
class LoggedStorage:
    """A storage that an operator of the step has made.

    Attributes:
        shape: Of the tensor that the operator returned in it.
        operator: For example ``aten.addmm``.
        phase: None between the phases of a step.
        num_block_calls: Blocks that had begun in the forward pass; of what backward makes, when that part of forward
            ran which it is the backward of.
        born, died: Numbers of events in order; ``died`` is None while it lives.
        left_its_phase: It outlived the phase that it was born in.
    """

    key: int
    num_bytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    operator: str
    place: Place
    phase: Phase | None
    num_block_calls: int
    born: int
    died: int | None = None
    left_its_phase: bool = False


class StepLog(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its hook unannotated
    """Records one step on any device; scratch that a kernel takes and gives back within itself is not seen.

    Storages that are there before are told with `leave_out`.

    Attributes:
        storages: In the order in which they were made.
        num_block_calls: Calls of blocks in the forward pass that had most of them.
        first_calls: Of each module outside of blocks, by path, how many blocks had begun when it first ran.
        first_places: Where each module, by path, ran first: a unit that is a method has modules of its own.
    """

    def __init__(self, places: Places, phases: PhaseSwitch, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        self._device_type = device.type
        self.storages: list[LoggedStorage] = []
        self.num_block_calls = 0
        self.first_calls: dict[str, int] = {}
        self.first_places: dict[str, Place] = {}
        self._places = places
        self._phases = phases
        self._stack = PlaceStack(places)
        self._stack.on_change = self._own_from_now
        self._alive: dict[int, tuple[weakref.ref[torch.UntypedStorage], LoggedStorage | None]] = {}
        self._num_events = 0
        self._phase: Phase | None = None
        self._last: tuple[Place, int] = (Place(""), 0)
        #: Sequence number from which on nodes of the graph belong to the place, and to the call of a block, beside it.
        self._first_nodes: list[int] = []
        self._owners: list[tuple[Place, int]] = []

    def leave_out(self, tensors: Iterable[torch.Tensor]) -> None:
        """Never counts the storages of these tensors, which are there already."""
        for tensor in tensors:
            for storage in storages_of(tensor):
                self._watch(storage, None)

    @property
    def calls_of_blocks(self) -> Mapping[tuple[str, int], int]:
        """How often each block was called in the last forward pass, by its list and position."""
        return self._stack.calls_of_blocks

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Within the context everything is recorded."""
        with self._stack.following(), self._phases.watched_by(self), self:
            yield

    @contextmanager
    def watching(self, phase: Phase) -> Iterator[None]:
        """As a `PhaseWatcher`."""
        before, self._phase = self._phase, phase
        if phase is Phase.FORWARD:
            self._stack.restart()
        first = len(self.storages)
        try:
            yield
        finally:
            for storage in self.storages[first:]:
                if storage.phase is phase and storage.died is None:
                    storage.left_its_phase = True
            self._phase = before
            self.num_block_calls = max(self.num_block_calls, self._stack.num_block_calls)

    def alive_at_highest(self) -> list[LoggedStorage]:
        """What was alive when most bytes in storages of the log were, in the order in which it was made."""
        changes = [(each.born, each.num_bytes) for each in self.storages]
        changes += [(each.died, -each.num_bytes) for each in self.storages if each.died is not None]
        alive = most = when = 0
        for event, num_bytes in sorted(changes):
            alive += num_bytes
            if alive > most:
                most, when = alive, event
        return [each for each in self.storages if each.born <= when and (each.died is None or each.died > when)]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        for part in output if isinstance(output, tuple | list) else (output,):
            if isinstance(part, torch.Tensor):
                for storage in storages_of(part):
                    if storage._cdata not in self._alive and storage.device.type == self._device_type:
                        self._add(storage, part, func)
        return output

    def _add(self, storage: torch.UntypedStorage, tensor: torch.Tensor, func: Any) -> None:
        self._num_events += 1
        self._last = place, num_block_calls = self._now()
        made = LoggedStorage(
            key=storage._cdata,
            num_bytes=storage.nbytes(),
            shape=tuple(tensor.shape),
            dtype=tensor.dtype,
            operator=str(func._overloadpacket),
            place=place,
            phase=self._phase,
            num_block_calls=num_block_calls,
            born=self._num_events,
        )
        self.storages.append(made)
        self._watch(storage, made)

    def _watch(self, storage: torch.UntypedStorage, made: LoggedStorage | None) -> None:
        key = storage._cdata
        self._alive[key] = (weakref.ref(storage, lambda _: self._let_go(key)), made)

    def _let_go(self, key: int) -> None:
        _, storage = self._alive.pop(key, (None, None))
        if storage is not None:
            self._num_events += 1
            storage.died = self._num_events

    def _now(self) -> tuple[Place, int]:
        if self._stack.top is not None:
            return self._stack.top, self._stack.num_block_calls
        if self._phase is Phase.RECOMPUTE and self._phases.last_recomputed_region is not None:
            place = self._places.of_region(self._phases.last_recomputed_region)
            if place is not None:
                return place, self._last[1]
        node = torch._C._current_autograd_node()
        number = _LAST_SEQUENCE_NUMBER if node is None else node._sequence_nr()
        owner = bisect.bisect_right(self._first_nodes, number) - 1
        return self._owners[owner] if owner >= 0 and number < _LAST_SEQUENCE_NUMBER else self._last

    def _own_from_now(self) -> None:
        self._first_nodes.append(torch._C._autograd._get_sequence_nr())
        place, num_block_calls = self._stack.top or Place(""), self._stack.num_block_calls
        self._owners.append((place, num_block_calls))
        if self._phase is Phase.FORWARD:
            self.first_places.setdefault(place.module, place)
            if place.blocks is None:
                self.first_calls.setdefault(place.module, num_block_calls)


def storages_of(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """What a tensor keeps its values in: its storage, or those of a sparse one's parts."""
    if tensor.layout == torch.strided:
        return [tensor.untyped_storage()]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices().untyped_storage(), tensor._values().untyped_storage()]
    return []
