"""Work that one rank does for all while the others wait for what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch.distributed as dist

from runners.devices.base import Device
from runners.parallel.ranks import Ranks

T = TypeVar("T")


class FirstRankError(RuntimeError):
    """The first rank failed at what it did for all; every rank raises this, so that all go on alike."""

    def __init__(self, message: str, *, is_out_of_memory: bool) -> None:
        super().__init__(message)
        self.is_out_of_memory = is_out_of_memory


def on_first_rank(ranks: Ranks, device: Device, run: Callable[[], T]) -> T | None:
    """What ``run`` gives on the first rank, None on the others, once it is through.

    Raises:
        FirstRankError: It raised, on the first of several ranks. Of a process alone its own error passes unchanged.
    """
    if ranks.size == 1:
        return run()
    result: T | None = None
    failure: FirstRankError | None = None
    if ranks.rank == 0:
        try:
            with without_group():
                result = run()
        except Exception as error:  # noqa: BLE001  # all ranks must hear of it, whatever it is
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            failure = FirstRankError(text, is_out_of_memory=device.is_out_of_memory(error))
    heard = ranks.gather(None if failure is None else (str(failure), failure.is_out_of_memory))[0]
    if heard is not None:
        raise FirstRankError(heard[0], is_out_of_memory=heard[1])
    return result


@contextmanager
def without_group() -> Iterator[None]:
    """Within the context torch knows of no process group, as in a process of its own.

    A model that asks the other ranks in its forward pass (`SyncBatchNorm`, a loss over gathered features) would wait
    for ever for those that do not run it.
    """
    world = dist.group.WORLD
    dist.group.WORLD = None
    try:
        yield
    finally:
        dist.group.WORLD = world
