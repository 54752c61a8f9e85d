"""Counts the bytes of all storages that are alive, as operations make them and as the last reference lets them go."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from runners.dry_run.fake_values import DEVICE, FakeValues
from runners.dry_run.kernel_scratch import KernelScratch, Ran
from runners.dry_run.operation_log import Operation, highest_bytes
from runners.measure.flops import flop_formulas

_SUM = torch.ops.aten.add.Tensor


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

    Args:
        scratch: Tells what kernels take and give back within one operation; None counts nothing of the kind.

    Attributes:
        before_operation: Called before each operation, for who divides a step.
        birthplace: Whatever names the stretch that runs; storages are remembered with it.
        on_death: Called with each storage that dies.
    """

    def __init__(self, scratch: KernelScratch | None = None) -> None:
        super().__init__()
        self.guesses = True
        self._scratch = scratch
        self.before_operation: Callable[[], None] | None = None
        self.birthplace: object = None
        self.on_death: Callable[[CountedStorage], None] | None = None
        self.live_bytes = 0
        self._highest_bytes = 0
        self._flops = 0
        self._operations: list[Operation] = []
        #: What the last operation added something to, if it may have been added in place. Not a view: what that is
        #: a view of counts as in use, so a tied weight's two gradients and their sum are alive at once.
        self._summed: CountedStorage | None = None
        self._known: dict[int, CountedStorage] = {}
        self._formulas = flop_formulas()

    def hold_as_made(self, tensor: torch.Tensor) -> None:
        """Counts what no operation that is seen has made just now."""
        if self.before_operation is not None:
            self.before_operation()
        self.hold(tensor)
        self._highest_bytes = max(self._highest_bytes, self.live_bytes)

    def hold(self, tensor: torch.Tensor, num_bytes: int | None = None) -> None:
        """Counts the tensor's storage until it dies, unless it is counted already.

        Args:
            num_bytes: What it takes where that is not what it looks like.
        """
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._known:
            self._add(storage, key, storage.nbytes() if num_bytes is None else num_bytes)

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
        self._settle_sum()
        highest = max(self._highest_bytes, highest_bytes(self._operations))
        cut = MemoryCut(self.live_bytes, highest, self._flops, len(self._operations))
        self._highest_bytes, self._flops, self._operations = self.live_bytes, 0, []
        return cut

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is DEVICE:
            return args[0].fake_device
        if self.before_operation is not None:
            self.before_operation()
        self._settle_sum()
        before_bytes = self.live_bytes
        output = super().__torch_dispatch__(func, types, args, kwargs)
        outputs = [part for part in _parts(output) if isinstance(part, torch.Tensor)]
        ran = self._ran(func, args, kwargs or {}, output)
        sizes: Sequence[int | None] = [None] * len(outputs)
        if ran is not None and len(ran.output_bytes) == len(outputs):
            sizes = ran.output_bytes
        for part, num_bytes in zip(outputs, sizes, strict=True):
            self._hold_strided(part, num_bytes)
        gained = 0 if ran is None else ran.gained_bytes
        self._operations.append(Operation(func, before_bytes, max(self.live_bytes, before_bytes + gained)))
        if func is _SUM and _is_in_backward() and isinstance(args[0], torch.Tensor) and not args[0]._is_view():
            self._summed = self.find(args[0])
        formula = self._formulas.get(func._overloadpacket)
        if formula is not None:
            self._flops += int(formula(*args, **(kwargs or {}), out_val=output))
        return output

    def _settle_sum(self) -> None:
        """Tells of the last operation whether what it added to is gone, so that it need not have been kept."""
        if self._summed is not None and self._summed() is None:
            self._operations[-1] = replace(self._operations[-1], sums_up=True)
        self._summed = None

    def _ran(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Ran | None:
        def true_bytes(tensor: torch.Tensor) -> int | None:
            storage = self.find(tensor)
            return None if storage is None else storage.num_bytes

        return None if self._scratch is None else self._scratch.ran(func, args, kwargs, output, true_bytes)

    def _hold_strided(self, tensor: torch.Tensor, num_bytes: int | None) -> None:
        if tensor.layout == torch.strided:
            self.hold(tensor, num_bytes)
        elif tensor.layout == torch.sparse_coo:
            self.hold(tensor._indices())
            self.hold(tensor._values())

    def _add(self, storage: torch.UntypedStorage, key: int, num_bytes: int) -> None:
        self._known[key] = CountedStorage(storage, self._forget, key, num_bytes, self.birthplace)
        self.live_bytes += num_bytes

    def _forget(self, reference: CountedStorage) -> None:
        storage = self._known.pop(reference.key)
        self.live_bytes -= storage.num_bytes
        if self.on_death is not None:
            self.on_death(storage)


def _is_in_backward() -> bool:
    """True within backward, but not in what it runs again to rebuild."""
    return torch._C._current_autograd_node() is not None and not torch.is_grad_enabled()


def _parts(output: Any) -> Sequence[Any]:
    return output if isinstance(output, tuple | list) else (output,)


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
