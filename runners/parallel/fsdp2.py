"""Fully sharded data parallel: parameters, gradients and optimizer states are divided, and gathered group by group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from runners.parallel.division import segment_ends
from search_spaces.policy import RecomputePolicy


@dataclass(frozen=True)
class ShardingPlan:
    """How a model is divided into groups that are gathered as a whole.

    Attributes:
        groups: Paths of the blocks of each group; what is in no group is one more, that of the root.
        reshard_after_forward: Blocks are divided again after forward and gathered a second time in backward. The root,
            as torch has it, is not.
    """

    groups: tuple[tuple[str, ...], ...]
    reshard_after_forward: bool


def sharding_plan(model: nn.Module, block_lists: Sequence[str], policy: RecomputePolicy | None) -> ShardingPlan:
    """One group per block, but one per segment: its first block runs all of them.

    Args:
        block_lists: Paths of the lists whose blocks are groups.
        policy: None divides as a policy without recompute does.
    """
    segments = segment_ends(policy)
    groups = [group for path in block_lists for group in _groups(model, path, segments.get(path, {}))]
    return ShardingPlan(tuple(groups), policy is None or policy.reshard_after_forward is not False)


class Fsdp2Model:
    """The model after torch's fully_shard on each group and on the root.

    The model is divided in place. A policy that divides it otherwise needs a fresh one.
    """

    gradient_bucket_bytes = 0
    schedule = None

    def __init__(
        self, model: nn.Module, mesh: DeviceMesh, block_lists: Sequence[str], policy: RecomputePolicy | None
    ) -> None:
        self._model = model
        self._size = mesh.size()
        self._block_lists = tuple(block_lists)
        self._plan = sharding_plan(model, block_lists, policy)
        for group in self._plan.groups:
            blocks = [model.get_submodule(path) for path in group]
            fully_shard(
                blocks if len(blocks) > 1 else blocks[0],
                mesh=mesh,
                reshard_after_forward=self._plan.reshard_after_forward,
            )
        fully_shard(model, mesh=mesh)

    def __call__(self, **inputs: Any) -> Any:
        return self._model(**inputs)

    def micro_batch(self, *, is_last: bool) -> AbstractContextManager[Any]:
        assert isinstance(self._model, FSDPModule)
        # Between reductions the gradients of whole parameters add up on every rank: less traffic for more memory.
        self._model.set_requires_gradient_sync(is_last)
        return nullcontext()

    def mean_over_ranks(self, value: torch.Tensor) -> torch.Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total / self._size

    def whole_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self._model.named_parameters():
            if parameter.grad is not None:
                gradient = parameter.grad
                yield name, gradient.full_tensor() if isinstance(gradient, DTensor) else gradient

    def whole_buffers(self) -> dict[str, torch.Tensor]:
        return dict(self._model.named_buffers())

    def takes(self, policy: RecomputePolicy | None) -> bool:
        return sharding_plan(self._model, self._block_lists, policy) == self._plan


def _groups(model: nn.Module, path: str, segments: dict[int, int]) -> Iterator[tuple[str, ...]]:
    children = [(key, block) for key, block in model.get_submodule(path)._modules.items() if block is not None]
    seen: set[int] = set()
    position = 0
    while position < len(children):
        last = segments.get(position, position)
        # One module at several positions is divided once.
        fresh = [(key, block) for key, block in children[position : last + 1] if id(block) not in seen]
        seen.update(id(block) for _, block in fresh)
        if fresh:
            yield tuple(f"{path}.{key}" for key, _ in fresh)
        position = last + 1
