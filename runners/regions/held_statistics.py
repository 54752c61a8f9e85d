"""Normalization over the batch counts each sample once, though a rebuild runs its layer a second time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn

#: Batch and instance normalization of every kind: layers that keep a running mean of what they normalize.
WITH_STATISTICS = nn.modules.batchnorm._NormBase


def keeps_statistics(module: nn.Module) -> bool:
    """Whether forward of the module, in the mode it is in, advances statistics of a normalization layer within it."""
    return any(_advances(part) for part in module.modules())


@contextmanager
def statistics_held(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Within the context, running statistics of the modules stay as they are.

    What a layer in training puts out does not depend on them, so it is the same as before. The layer writes into
    copies, of the same shapes: a rebuild has to save for backward what forward saved.
    """
    parts = {id(part): part for module in modules for part in module.modules() if _advances(part)}
    buffers = [(part, name, buffer) for part in parts.values() for name, buffer in part._buffers.items()]
    try:
        for part, name, buffer in buffers:
            part._buffers[name] = None if buffer is None else buffer.clone()
        yield
    finally:
        for part, name, buffer in buffers:
            part._buffers[name] = buffer


def _advances(module: nn.Module) -> bool:
    return isinstance(module, WITH_STATISTICS) and module.training and module.track_running_stats
