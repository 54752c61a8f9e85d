"""What is counted of whole steps, against torch's own counter, on ranks of which only one is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from runners.apply_policy import apply_policy
from runners.measure.phases import PhaseSwitch
from runners.measure.training_step import TrainingStep
from runners.parallel.base import ParallelModel
from runners.parallel.collective_counter import CollectiveCounts, count_collectives
from runners.parallel.ddp import DdpModel
from runners.parallel.fsdp2 import Fsdp2Model
from runners.workloads.gpt import gpt
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region

NUM_RANKS, NUM_BLOCKS = 4, 3
CPU = torch.device("cpu")
#: Names of torch's counter, by what its own names begin with.
KINDS = {"allgather": "all_gather", "all_gather": "all_gather", "_allgather": "all_gather"}
KINDS |= {"reduce_scatter": "reduce_scatter", "_reduce_scatter": "reduce_scatter"}
KINDS |= {"allreduce": "all_reduce", "all_reduce": "all_reduce"}


@contextmanager
def process_group(strategy: str) -> Iterator[None]:
    """One of four ranks, whose collectives send nothing; for DDP, which looks at their results, a rank alone."""
    if strategy == "ddp":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=NUM_RANKS)
    try:
        yield
    finally:
        dist.destroy_process_group()


def policy(*regions: Region, reshards: bool) -> RecomputePolicy:
    placement = (BlockListPlacement("blocks", NUM_BLOCKS, regions=regions),)
    batch = BatchShape(1, 1, NUM_RANKS, NUM_RANKS)
    return RecomputePolicy(batch, placement, reshard_after_forward=None if reshards else False)


def rebuilt(model: nn.Module, *, reshards: bool) -> ParallelModel:
    """Every block rebuilt in backward."""
    blocks = policy(Region(0, NUM_BLOCKS - 1, "block"), reshards=reshards)
    apply_policy(model, blocks)
    return fsdp2(model, blocks)


def small_gpt() -> nn.Module:
    return gpt(n_layer=NUM_BLOCKS, n_embd=16, n_head=2, vocab_size=40, max_sequence_length=8)


def fsdp2(model: nn.Module, policy: RecomputePolicy | None = None) -> ParallelModel:
    return Fsdp2Model(model, init_device_mesh("cpu", (NUM_RANKS,)), ["blocks"], policy)


class _Loss:
    def loss_of(self, output: Any) -> torch.Tensor:
        return output["loss"] if isinstance(output, dict) else output

    def loss_weight_of(self, output: Any) -> None:
        return None


class _Theirs:
    """torch's counter, one for each micro-batch: it follows the modules of one forward pass."""

    def __init__(self) -> None:
        self.by_kind: dict[str, int] = {}
        self._debug: Any = None

    def begin(self) -> None:
        self.end()
        self._debug = CommDebugMode()
        self._debug.__enter__()

    def end(self) -> None:
        if self._debug is None:
            return
        self._debug.__exit__(None, None, None)
        for operator, calls in self._debug.get_comm_counts().items():
            kind = next((kind for prefix, kind in KINDS.items() if operator.__name__.startswith(prefix)), "other")
            self.by_kind[kind] = self.by_kind.get(kind, 0) + calls


def counted(
    divide: Callable[[nn.Module], ParallelModel], num_micro_batches: int
) -> tuple[CollectiveCounts, dict[str, int]]:
    """Ours and torch's, by kind, of one step after two that warm up: in the second DDP orders its buckets anew."""
    model = small_gpt()
    parallel = divide(model)
    phases = PhaseSwitch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = TrainingStep(
        model,
        optimizer,
        _Loss(),
        device=CPU,
        autocast=None,
        phases=phases,
        parallel=parallel,  # type: ignore[arg-type]
    )
    ids = torch.zeros(1, 8, dtype=torch.long)
    micro_batches = [{"input_ids": ids, "labels": ids}] * num_micro_batches
    for _ in range(2):
        step.run(micro_batches)
    ours = count_collectives(lambda: step.run(micro_batches), phases)
    theirs = _Theirs()
    step.run(micro_batches, before_micro_batch=theirs.begin)
    theirs.end()
    return ours, theirs.by_kind


@pytest.mark.parametrize("num_micro_batches", [1, 3])
@pytest.mark.parametrize(
    ("strategy", "divide", "per_micro_batch"),
    [
        ("ddp", lambda model: DdpModel(model, CPU), {}),
        # Each block twice, and what is outside of them once.
        ("fsdp2", fsdp2, {"all_gather": 2 * NUM_BLOCKS + 1}),
        ("fsdp2", lambda model: fsdp2(model, policy(reshards=False)), {"all_gather": NUM_BLOCKS + 1}),
        # Backward has gathered a block when it is rebuilt.
        ("fsdp2", lambda model: rebuilt(model, reshards=True), {"all_gather": 2 * NUM_BLOCKS + 1}),
        ("fsdp2", lambda model: rebuilt(model, reshards=False), {"all_gather": NUM_BLOCKS + 1}),
    ],
    ids=["ddp", "fsdp2", "fsdp2 whole", "fsdp2 rebuilt", "fsdp2 whole and rebuilt"],
)
def test_a_step_is_counted_as_torch_counts_it(
    strategy: str,
    divide: Callable[[nn.Module], ParallelModel],
    per_micro_batch: dict[str, int],
    num_micro_batches: int,
) -> None:
    with process_group(strategy):
        ours, theirs = counted(divide, num_micro_batches)
    by_kind = {kind: count.calls for kind, count in ours.by_kind.items() if count.calls}
    assert by_kind == theirs
    # Gradients are reduced once, in the last micro-batch, however many there are.
    reductions = {"all_reduce": 1} if strategy == "ddp" else {"reduce_scatter": NUM_BLOCKS + 1}
    assert by_kind == {**{kind: calls * num_micro_batches for kind, calls in per_micro_batch.items()}, **reductions}
    num_bytes = {kind: count.num_bytes for kind, count in ours.by_kind.items() if count.calls}
    sizes = {name: parameter.nbytes for name, parameter in small_gpt().named_parameters()}
    of_blocks = sum(size for name, size in sizes.items() if name.startswith("blocks."))
    outside = sum(sizes.values()) - of_blocks
    gathered = {
        kind: num_micro_batches * (calls // NUM_BLOCKS * of_blocks + outside) for kind, calls in per_micro_batch.items()
    }
    assert num_bytes == {**gathered, **dict.fromkeys(reductions, of_blocks + outside)}


def test_sends_and_receives_of_a_pipeline_are_point_to_point() -> None:
    def exchange() -> None:
        sent, received = torch.ones(8), torch.empty(8)
        ways = [dist.P2POp(dist.isend, sent, 1), dist.P2POp(dist.irecv, received, 1)]
        for work in dist.batch_isend_irecv(ways):
            work.wait()
        dist.send(sent, 1)

    with process_group("pipeline"):
        counts = count_collectives(exchange, PhaseSwitch())
    assert list(counts.by_kind) == ["point_to_point"]
    assert (counts.of("point_to_point").calls, counts.of("point_to_point").num_bytes) == (3, 3 * 32)
