"""The ranks of a trial and how they come to one answer. Whatever a rank decides by what it measured goes through here:
ranks that take different turns wait for each other for ever."""

from __future__ import annotations

import datetime
import os
from functools import cached_property
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils._python_dispatch import _disable_current_modes

from runners.parallel.records import RankSpec, Strategy

T = TypeVar("T")

#: A rank that waits is ended from outside, by whoever knows the trial's time limit; torch must not do so before.
_NEVER = datetime.timedelta(days=7)
#: Between the seeds of two ranks; the micro-batches of one rank and the steps of a proof lie within.
_SEED_STRIDE = 1_000_003


class Ranks(Protocol):
    """All ranks of a trial, as one of them sees them."""

    rank: int
    size: int

    def gather(self, value: T) -> list[T]:
        """The value of each rank, in order, the same list on all; every rank has to call it."""


class Alone:
    """A trial of one process."""

    rank = 0
    size = 1

    def gather(self, value: T) -> list[T]:
        return [value]


ALONE = Alone()


class RankGroup:
    """This process among others; made by `join_ranks`."""

    def __init__(self, spec: RankSpec, device: torch.device) -> None:
        self.rank = spec.rank
        self.size = spec.size
        self._device = device
        # What ranks agree on travels apart from what the training sends, over the host's network.
        self._host_group = dist.new_group(backend="gloo", timeout=_NEVER)
        self._subgroups: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def gather(self, value: T) -> list[T]:
        values: list[T | None] = [None] * self.size
        with _disable_current_modes():  # Who counts what training sends is not to count this.
            dist.all_gather_object(values, value, group=self._host_group)
        return values  # type: ignore[return-value]  # every place is filled

    def subgroup(self, members: tuple[int, ...]) -> dist.ProcessGroup:
        """Some of the ranks; every rank has to ask for the same ones in the same order, members or not."""
        if members not in self._subgroups:
            self._subgroups[members] = dist.new_group(list(members), timeout=_NEVER)
        return self._subgroups[members]

    @cached_property
    def mesh(self) -> DeviceMesh:
        """All ranks in one row; made once, since each one takes a process group."""
        return init_device_mesh(self._device.type, (self.size,))


def join_ranks(spec: RankSpec, device: torch.device) -> RankGroup:
    """Meets the other ranks; waits for them as long as it takes."""
    if spec.interface is not None:
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, spec.interface)
    dist.init_process_group(
        backend=dist.get_default_backend_for_device(device),
        init_method=f"tcp://{spec.address}:{spec.port}",
        rank=spec.rank,
        world_size=spec.size,
        timeout=_NEVER,
    )
    return RankGroup(spec, device)


def data_place(strategy: Strategy, ranks: Ranks) -> tuple[int, int]:
    """Which of how many parts of the samples this rank trains on; the stages of a pipeline all see the same ones."""
    return (0, 1) if strategy == "pipeline" else (ranks.rank, ranks.size)


def any_rank(ranks: Ranks, claim: bool) -> bool:
    """True on all ranks where one of them says so."""
    return any(ranks.gather(claim))


def rank_seed(seed: int, ranks: Ranks) -> int:
    """A seed of this rank's own: samples and dropout masks differ between ranks, as they do in training."""
    return seed + _SEED_STRIDE * ranks.rank
