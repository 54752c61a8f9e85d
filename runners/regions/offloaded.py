"""A block whose activations wait on the host: moved there in forward, fetched in backward, and nothing is rebuilt.

What autograd saves within the block's forward is copied to the host, each storage once, whichever views of it are
saved. Parameters and buffers stay, and so does what is no plain strided tensor. On an accelerator copies run beside the
computation, on a stream of their own and into pinned memory. On a CPU host and device are the same memory: the copies
are made all the same, cost time and save nothing.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

#: Told of each copy that is made on the host.
HostCopyObserver: TypeAlias = Callable[[torch.Tensor], None]


class OffloadLine:
    """Blocks that are offloaded one after another: while one runs backward, the one before it is fetched.

    Args:
        on_host_copy: Called with each copy that is made on the host; used for measuring.

    Attributes:
        last: The forward that ran last, while its graph lives.
    """

    def __init__(self, on_host_copy: HostCopyObserver | None = None) -> None:
        self.on_host_copy = on_host_copy
        self.last: Callable[[], _Pass | None] = lambda: None

    def __reduce__(self) -> tuple[type[OffloadLine], tuple[()]]:
        """Of a copy: a forward under way and whoever watches it are the original's."""
        return OffloadLine, ()


class OffloadedCall:
    """Stands in for one bound ``forward``.

    Args:
        model: Whose parameters and buffers are never moved.
        name: Of the block, for people.
    """

    def __init__(self, original: Callable[..., Any], model: nn.Module, line: OffloadLine, name: str) -> None:
        functools.update_wrapper(self, original)
        self.original = original
        self._model = model
        self._line = line
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.original(*args, **kwargs)
        pass_ = _Pass(self._name, self._model, self._line)
        self._line.last = weakref.ref(pass_)
        try:
            with torch.autograd.graph.saved_tensors_hooks(pass_.pack, pass_.unpack):
                return self.original(*args, **kwargs)
        finally:
            pass_.close()


class _Pass:
    """One forward of the block and the backward that belongs to it."""

    def __init__(self, name: str, model: nn.Module, line: OffloadLine) -> None:
        self._name = name
        self._before = line.last
        self._on_host_copy = line.on_host_copy
        self._is_asked_for = False
        self._in_order: list[weakref.ref[_Moved]] = []
        self._staying = {
            tensor.untyped_storage()._cdata
            for tensor in (*model.parameters(), *model.buffers())
            if tensor.layout == torch.strided and not is_traceable_wrapper_subclass(tensor)
        }
        self._moved: dict[tuple[int, int, torch.dtype], _Moved] = {}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor | _View:
        if not _is_movable(tensor) or tensor.untyped_storage()._cdata in self._staying:
            return tensor
        # After an edit in place the same storage holds something else, so it is another copy.
        key = (tensor.untyped_storage()._cdata, tensor._version, tensor.dtype)
        moved = self._moved.get(key)
        if moved is None or moved.is_source_gone():
            moved = self._moved[key] = _Moved(tensor, self._name)
            self._in_order.append(weakref.ref(moved))
            if self._on_host_copy is not None:
                self._on_host_copy(moved.host)
        moved.num_views += 1
        return _View(moved, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def unpack(self, packed: torch.Tensor | _View) -> torch.Tensor:
        if not isinstance(packed, _View):
            return packed
        if not self._is_asked_for:
            self._is_asked_for = True
            self.prefetch()
            before = self._before()
            if before is not None:
                before.prefetch()
        return packed.fetch()

    def prefetch(self) -> None:
        """Begins to fetch all that was moved, in the order that backward will ask for it."""
        for reference in reversed(self._in_order):
            moved = reference()
            if moved is not None:
                moved.prefetch()

    def close(self) -> None:
        """At the end of forward: what was moved may go from the device."""
        for moved in self._moved.values():
            moved.let_source_go()
        self._moved.clear()


def on_host(packed: object) -> torch.Tensor | None:
    """What was saved as it waits on the host; None where it was not moved."""
    return packed.on_host() if isinstance(packed, _View) else None


def _is_movable(tensor: torch.Tensor) -> bool:
    is_plain = tensor.layout == torch.strided and not is_traceable_wrapper_subclass(tensor)
    # A leaf that wants a gradient is more than its values; lazy conjugates and negatives are more than their storage.
    wants_gradient = tensor.is_leaf and tensor.requires_grad
    return is_plain and not (wants_gradient or tensor.is_conj() or tensor.is_neg()) and tensor.numel() > 0


@dataclass(frozen=True)
class _View:
    """A saved tensor, as a view of a storage on the host."""

    moved: _Moved
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def fetch(self) -> torch.Tensor:
        return self.moved.fetch().as_strided(self.size, self.stride, self.offset)

    def on_host(self) -> torch.Tensor:
        return self.moved.host.as_strided(self.size, self.stride, self.offset)


class _Moved:
    """A storage on the host.

    Attributes:
        host: The copy, flat.
        num_views: Saved tensors that are views of it.
    """

    def __init__(self, tensor: torch.Tensor, block_name: str) -> None:
        storage = tensor.untyped_storage()
        self._block_name = block_name
        self._device = tensor.device
        self._source = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        self._version = tensor._version
        self.num_views = 0
        self._num_fetched = 0
        self._fetched: tuple[torch.Tensor, torch.Event | None] | None = None
        self._is_spoiled = False
        with torch.no_grad():
            whole = tensor.detach().as_strided((storage.nbytes() // tensor.element_size(),), (1,), 0)
            if self._device.type == "cpu":
                # Complete at once: the source may go now.
                self._held: torch.Tensor | None = None
                self._arrived: torch.Event | None = None
                self.host = whole.clone()
            else:
                self._held = whole
                self.host, self._arrived = _copy_beside(whole, torch.device("cpu"))

    def is_source_gone(self) -> bool:
        """Whether another storage may stand at the source's place by now."""
        return bool(self._source.expired())  # type: ignore[no-untyped-call]  # torch leaves it unannotated

    def let_source_go(self) -> None:
        """What computes next waits for the copy; the source's memory may be given to it then."""
        if self._held is None or self._arrived is None:
            return
        self._is_spoiled = self._held._version != self._version
        torch.accelerator.current_stream(self._device).wait_event(self._arrived)
        self._held = None

    def fetch(self) -> torch.Tensor:
        """The storage on the device, flat; kept there until every view of it was asked for once.

        Raises:
            RuntimeError: The tensor was edited in place after it was saved, before its copy was known to be complete.
        """
        if self._is_spoiled:
            raise RuntimeError(
                f"{self._block_name}: a tensor needed for its gradient was modified by an inplace operation after it "
                "was saved; plain training refuses that as well, so compute it out of place"
            )
        if self._fetched is None:
            self._fetched = self._copied_back()
        fetched, arrived = self._fetched
        if arrived is not None:
            torch.accelerator.current_stream(self._device).wait_event(arrived)
        self._num_fetched += 1
        if self._num_fetched % self.num_views == 0:
            self._fetched = None
        return fetched

    def prefetch(self) -> None:
        """Begins the copy back where it can run beside the computation."""
        if self._device.type != "cpu" and self._fetched is None and not self._is_spoiled:
            self._fetched = self._copied_back()

    def _copied_back(self) -> tuple[torch.Tensor, torch.Event | None]:
        with torch.no_grad():
            if self._device.type == "cpu":
                return self.host.clone(), None
            return _copy_beside(self.host, self._device)


@functools.cache
def _copy_stream(device: torch.device) -> torch.Stream:
    return torch.Stream(device)


def _copy_beside(source: torch.Tensor, target: torch.device) -> tuple[torch.Tensor, torch.Event]:
    """A copy that is under way between an accelerator and pinned memory, and the event of its arrival."""
    device = source.device if source.device.type != "cpu" else target
    stream = _copy_stream(device)
    copied = torch.empty_like(source, device=target, pin_memory=target.type == "cpu")
    stream.wait_stream(torch.accelerator.current_stream(device))
    with stream:
        copied.copy_(source, non_blocking=True)
        arrived = torch.Event(device)
        arrived.record(stream)
    return copied, arrived
