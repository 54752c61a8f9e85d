"""Counts the bytes of all storages that are alive, as operations make them and as the last reference lets them go."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from runners.dry_run.fake_values import DEVICE, FakeValues
from runners.measure.flops import flop_formulas


@dataclass(frozen=True)
class MemoryCut:
    """What happened since the cut before.

    Attributes:
        live_bytes: Alive now.
        highest_bytes: Most bytes alive since.
        flops: Floating-point operations since.
        num_operations: Operations since.
    """

    live_bytes: int
    highest_bytes: int
    flops: int
    num_operations: int


class LiveMemory(FakeValues):  # type: ignore[no-untyped-call]  # torch leaves its hook unannotated
    """Sees every operation while it is entered, and every storage's end always.

    Scratch that a kernel takes and gives back within one operation is not seen.

    Attributes:
        before_operation: Called before each operation, for who divides a step.
        birthplace: Whatever names the stretch that runs; storages are remembered with it.
        on_death: Called with each storage that dies.
    """

    def __init__(self) -> None:
        super().__init__()
        self.guesses = True
        self.before_operation: Callable[[], None] | None = None
        self.birthplace: object = None
        self.on_death: Callable[[CountedStorage], None] | None = None
        self.live_bytes = 0
        self._highest_bytes = 0
        self._flops = 0
        self._num_operations = 0
        self._known: dict[int, CountedStorage] = {}
        self._formulas = flop_formulas()

    def hold_as_made(self, tensor: torch.Tensor) -> None:
        """Counts what no operation that is seen has made just now."""
        if self.before_operation is not None:
            self.before_operation()
        self.hold(tensor)

    def hold(self, tensor: torch.Tensor) -> None:
        """Counts the tensor's storage until it dies, unless it is counted already."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._known:
            self._add(storage, key, storage.nbytes())

    def leave_out(self, tensor: torch.Tensor) -> None:
        """Never counts the tensor's storage, whatever views of it come by."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._add(storage, storage._cdata, 0)

    def move_elsewhere(self, tensor: torch.Tensor) -> None:
        """No longer counts the tensor's storage: it is another memory's."""
        storage = self._known.get(tensor.untyped_storage()._cdata)
        if storage is not None:
            self.live_bytes -= storage.num_bytes
            storage.num_bytes = 0

    def find(self, tensor: torch.Tensor) -> CountedStorage | None:
        """What is known of the tensor's storage; None where it is not counted."""
        return self._known.get(tensor.untyped_storage()._cdata) if tensor.layout == torch.strided else None

    def cut(self) -> MemoryCut:
        """What happened since the last cut; a new stretch begins."""
        cut = MemoryCut(self.live_bytes, self._highest_bytes, self._flops, self._num_operations)
        self._highest_bytes, self._flops, self._num_operations = self.live_bytes, 0, 0
        return cut

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is DEVICE:
            return args[0].fake_device
        if self.before_operation is not None:
            self.before_operation()
        output = super().__torch_dispatch__(func, types, args, kwargs)
        self._num_operations += 1
        if isinstance(output, torch.Tensor):
            self._hold_strided(output)
        elif isinstance(output, tuple | list):
            for part in output:
                if isinstance(part, torch.Tensor):
                    self._hold_strided(part)
        formula = self._formulas.get(func._overloadpacket)
        if formula is not None:
            self._flops += int(formula(*args, **(kwargs or {}), out_val=output))
        return output

    def _hold_strided(self, tensor: torch.Tensor) -> None:
        if tensor.layout == torch.strided:
            self.hold(tensor)
        elif tensor.layout == torch.sparse_coo:
            self.hold(tensor._indices())
            self.hold(tensor._values())

    def _add(self, storage: torch.UntypedStorage, key: int, num_bytes: int) -> None:
        self._known[key] = CountedStorage(storage, self._forget, key, num_bytes, self.birthplace)
        self.live_bytes += num_bytes
        if self.live_bytes > self._highest_bytes:
            self._highest_bytes = self.live_bytes

    def _forget(self, reference: CountedStorage) -> None:
        storage = self._known.pop(reference.key)
        self.live_bytes -= storage.num_bytes
        if self.on_death is not None:
            self.on_death(storage)


class CountedStorage(weakref.ref[torch.UntypedStorage]):
    """A storage that is counted while it lives.

    Attributes:
        birthplace: The stretch that made it.
        consumer: The stretch of the block that is handed it as the block's input; None where none is.
        is_output: A block has returned it.
    """

    __slots__ = ("birthplace", "consumer", "is_output", "key", "num_bytes")

    def __new__(
        cls, storage: torch.UntypedStorage, callback: Callable[[CountedStorage], None], *_: object
    ) -> CountedStorage:
        return super().__new__(cls, storage, callback)

    def __init__(
        self,
        storage: torch.UntypedStorage,
        callback: Callable[[CountedStorage], None],
        key: int,
        num_bytes: int,
        birthplace: object,
    ) -> None:
        super().__init__(storage, callback)  # type: ignore[call-arg]  # as C code it takes what __new__ takes
        self.key = key
        self.num_bytes = num_bytes
        self.birthplace = birthplace
        self.consumer: object = None
        self.is_output = False
