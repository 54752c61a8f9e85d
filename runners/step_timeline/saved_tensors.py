"""Follows what autograd saves and takes back, through the hooks that recompute itself uses as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.autograd.graph import saved_tensors_hooks

from runners.inspection.call_trace import tensors_in
from runners.regions.offloaded import on_host


@dataclass(frozen=True)
class KeptView:
    """A tensor as it was kept.

    Attributes:
        address: Of its storage's data.
        storage_bytes: Of the whole storage.
    """

    address: int
    storage_bytes: int
    shape: tuple[int, ...]
    dtype: str


def kept_views(value: Any) -> tuple[KeptView, ...]:
    """Every tensor in a nest of containers that has memory, a sparse one as the parts that have."""
    views = (_view(part) for tensor in tensors_in(value) for part in _strided_parts(tensor))
    return tuple(view for view in views if view.storage_bytes > 0)


class SavedTensorWatcher(Protocol):
    """Is told what is saved and taken back."""

    def saved(self, kept: tuple[KeptView, ...], *, is_on_host: bool = False) -> int:
        """What the graph holds on to from now on; empty where it holds no memory. Gives back a ticket for it.

        Args:
            is_on_host: It is a copy on the host, which offloading made.
        """

    def used(self, ticket: int, taken: tuple[KeptView, ...]) -> None:
        """Backward takes something back: what it saved under the ticket, or what a rebuild made in its place."""


@contextmanager
def watched_saves(watcher: SavedTensorWatcher) -> Iterator[None]:
    """Within the context, whatever is saved for backward is told, by whichever hooks it is saved.

    Hooks nest, and the innermost hide the others: those of a recompute region, which drop what they are given, those
    of its rebuild, those of a model that saves in its own way. So every pair of hooks that is entered is wrapped.
    """
    enter = saved_tensors_hooks.__enter__

    def enter_wrapped(hooks: saved_tensors_hooks) -> None:
        given = hooks.pack_hook, hooks.unpack_hook
        hooks.pack_hook, hooks.unpack_hook = _wrapped(*given, watcher)
        try:
            enter(hooks)
        finally:
            hooks.pack_hook, hooks.unpack_hook = given

    saved_tensors_hooks.__enter__ = enter_wrapped  # type: ignore[method-assign]  # put back below
    try:
        with saved_tensors_hooks(_detached, _itself):
            yield
    finally:
        saved_tensors_hooks.__enter__ = enter  # type: ignore[method-assign]  # as it was


@dataclass(frozen=True)
class _Ticketed:
    ticket: int
    packed: Any


def _wrapped(
    pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor], watcher: SavedTensorWatcher
) -> tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]:
    def pack_watched(tensor: torch.Tensor) -> Any:
        # A rebuild that has all it needs keeps the last tensor and then leaves its hook by an exception.
        kept: Any = tensor
        try:
            kept = pack(tensor)
        finally:
            moved = on_host(kept)
            ticket = watcher.saved(kept_views(kept if moved is None else moved), is_on_host=moved is not None)
        return _Ticketed(ticket, kept)

    def unpack_watched(packed: Any) -> torch.Tensor:
        tensor = unpack(packed.packed)
        watcher.used(packed.ticket, kept_views(tensor))
        return tensor

    return pack_watched, unpack_watched


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _strided_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    return (tensor,) if tensor.layout == torch.strided else ()


def _view(tensor: torch.Tensor) -> KeptView:
    storage = tensor.untyped_storage()
    return KeptView(storage.data_ptr(), storage.nbytes(), tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
