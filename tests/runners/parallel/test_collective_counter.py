from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import CommDebugMode

from runners.measure.phases import PhaseSwitch
from runners.parallel.collective_counter import count_collectives
from runners.parallel.ranks import RankGroup
from runners.parallel.records import RankSpec

WHOLE = torch.ones(8)


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("kind", "start"),
    [
        ("all_gather", lambda: dist.all_gather_into_tensor(torch.empty(8), WHOLE)),
        ("all_gather", lambda: dist.all_gather([torch.empty(8)], WHOLE)),
        ("reduce_scatter", lambda: dist.reduce_scatter_tensor(torch.empty(8), WHOLE)),
        ("all_reduce", lambda: dist.all_reduce(WHOLE.clone())),
        ("other", lambda: dist.broadcast(WHOLE.clone(), src=0)),
    ],
)
def test_a_collective_is_one_call_of_its_kind_with_the_bytes_of_the_whole(kind: Any, start: Callable[[], Any]) -> None:
    counts = count_collectives(start, PhaseSwitch())
    assert list(counts.by_kind) == [kind]
    assert (counts.of(kind).calls, counts.of(kind).num_bytes, counts.of(kind).calls_in_recompute) == (1, 32, 0)
    with CommDebugMode() as debug:
        start()
    assert debug.get_total_counts() == 1


def test_what_ranks_agree_on_is_not_counted() -> None:
    ranks = RankGroup(RankSpec(rank=0, size=1, address="localhost", port=1), torch.device("cpu"))
    assert list(count_collectives(lambda: ranks.gather("a figure"), PhaseSwitch()).by_kind) == []


def test_what_is_started_while_something_is_rebuilt_is_told_apart() -> None:
    phases = PhaseSwitch()

    def run() -> None:
        dist.all_reduce(WHOLE.clone())
        with phases.recomputing("a block"):
            dist.all_reduce(WHOLE.clone())

    counted = count_collectives(run, phases).of("all_reduce")
    assert (counted.calls, counted.num_bytes, counted.calls_in_recompute) == (2, 64, 1)
