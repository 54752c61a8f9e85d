from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from runners.workloads.base import BatchMaker
from runners.workloads.configured_workload import ConfiguredWorkload
from runners.workloads.example_batches import ExampleBatches


class Net(nn.Module):
    """Draws from all three generators when it is built, and makes its own batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.tensor([random.random(), np.random.random()]))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def example_batch(self, micro_batch_size: int) -> dict[str, Any]:
        return {"x": torch.randn(micro_batch_size, 2)}


class Source:
    """Builds nets and counts them."""

    reads_sequences = False

    def __init__(self) -> None:
        self.num_built = 0

    def build(self) -> nn.Module:
        self.num_built += 1
        return Net()

    def batch_maker(self, model: nn.Module, rebuild: Callable[[], nn.Module]) -> BatchMaker:
        return ExampleBatches(model, rebuild, sequence_lengths=())


def workload(source: Source, *, dtype: torch.dtype = torch.float32, seed: int = 0) -> ConfiguredWorkload:
    return ConfiguredWorkload(source, batches=None, sequence_lengths=(), dtype=dtype, seed=seed, factory="net.py:build")


def test_one_seed_builds_one_model_whatever_was_drawn_before() -> None:
    first = workload(Source()).build_model().state_dict()
    random.random(), np.random.random(), torch.rand(3)
    second = workload(Source()).build_model().state_dict()
    other = workload(Source(), seed=1).build_model().state_dict()
    for name in ("first.weight", "scale"):
        assert torch.equal(first[name], second[name])
        assert not torch.equal(first[name], other[name])


def test_the_dtype_reaches_parameters_and_buffers_and_keeps_ties_and_integers() -> None:
    model: Any = workload(Source(), dtype=torch.bfloat16).build_model()
    assert model.first.weight is model.second.weight
    assert (model.first.weight.dtype, model.scale.dtype, model.steps.dtype) == (
        torch.bfloat16,
        torch.bfloat16,
        torch.long,
    )


def test_batches_come_from_the_callers_random_state() -> None:
    made = workload(Source())
    model = made.build_model()
    torch.manual_seed(3)
    first, second = made.make_batch(2)["x"], made.make_batch(2)["x"]
    torch.manual_seed(3)
    assert torch.equal(made.make_batch(2)["x"], first)
    assert not torch.equal(first, second)
    del model


def test_batches_do_not_keep_the_model_alive_and_can_be_made_without_it() -> None:
    source = Source()
    made = workload(source)
    gone = weakref.ref(made.build_model())
    gc.collect()
    assert gone() is None
    torch.manual_seed(3)
    without_model = made.make_batch(2)["x"]
    assert source.num_built == 2
    model = made.build_model()
    torch.manual_seed(3)
    assert torch.equal(made.make_batch(2)["x"], without_model)
    assert source.num_built == 3
    del model


def test_a_batch_may_be_asked_for_before_any_model() -> None:
    assert workload(Source()).make_batch(3)["x"].shape == (3, 2)
