from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from runners.base import WorkloadError
from runners.dry_run.fake_model import FakeModelWorkload


class Built:
    """A workload whose model is what a function returns."""

    tokens_per_sample = None

    def __init__(self, build: Any) -> None:
        self._build = build

    def build_model(self) -> nn.Module:
        model: nn.Module = self._build()
        return model

    def make_batch(self, micro_batch_size: int, sequence_length: int | None = None) -> dict[str, Any]:
        return {"x": torch.ones(micro_batch_size)}

    def loss_of(self, output: Any) -> torch.Tensor:
        loss: torch.Tensor = output
        return loss

    def loss_weight_of(self, output: Any) -> torch.Tensor | None:
        return None


def build(make: Any) -> nn.Module:
    return FakeModelWorkload(Built(make), FakeTensorMode(allow_non_fake_inputs=True)).build_model()


def tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def test_rates_per_layer_are_read_from_tables_while_building() -> None:
    def make() -> nn.Module:
        rates = [rate.item() for rate in torch.linspace(0, 0.5, 3)]
        return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Dropout(rate)) for rate in rates))

    model = build(make)
    assert [block[1].p for block in model] == [0.0, 0.25, 0.5]
    assert all(isinstance(tensor, FakeTensor) for tensor in tensors(model))


def test_buffers_with_data_lose_it_and_ties_stay_ties() -> None:
    def make() -> nn.Module:
        model = nn.Linear(4, 4)
        model.register_buffer("table", torch.arange(8) / 2)
        model.other = nn.Linear(4, 4)
        model.other.weight = model.weight
        return model

    model = build(make)
    assert all(isinstance(tensor, FakeTensor) for tensor in tensors(model))
    assert model.other.weight is model.weight
    assert model.table.dtype == torch.float32


def test_code_that_needs_data_is_given_it_and_the_data_is_thrown_away() -> None:
    def make() -> nn.Module:
        model = nn.Linear(4, 4)
        model.scale = float(model.weight.detach().abs().max())
        model.weight.data = torch.from_numpy(model.weight.detach().numpy() / model.scale)
        model.twin = nn.Linear(4, 4)
        model.twin.weight = model.weight
        return model

    model = build(make)
    assert 0 < model.scale <= 0.5
    assert all(isinstance(tensor, FakeTensor) for tensor in tensors(model))
    assert isinstance(model.weight, nn.Parameter)
    assert model.twin.weight is model.weight


def test_model_that_cannot_be_built_at_all_says_why() -> None:
    def make() -> nn.Module:
        raise WorkloadError("model.factory is broken")

    with pytest.raises(WorkloadError, match=r"model\.factory is broken"):
        build(make)


def test_batches_are_real() -> None:
    workload = FakeModelWorkload(Built(lambda: nn.Linear(4, 4)), FakeTensorMode())
    assert workload.make_batch(2)["x"].tolist() == [1.0, 1.0]
