from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from runners.apply_policy import apply_policy
from runners.regions.held_statistics import keeps_statistics, statistics_held
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm1d(4),
    "cumulative mean": lambda: nn.BatchNorm1d(4, momentum=None),
    "instance norm": lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True),
}
ACTIONS = {"block": None, "norm": None, "segment": 2}


class Block(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.norm = nn.Sequential(norm, nn.SiLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.conv(x))


class Model(nn.Module):
    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(make()) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def trained(model: nn.Module) -> dict[str, torch.Tensor]:
    """Gradients and buffers after two micro-batches and an update."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(5, 4, 6)).backward()
    optimizer.step()
    return {**{n: p.grad for n, p in model.named_parameters() if p.grad is not None}, **model.state_dict()}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS.keys())
def test_a_rebuild_leaves_statistics_as_forward_left_them(make: Callable[[], nn.Module], action: str) -> None:
    torch.manual_seed(0)
    model = Model(make)
    plain = copy.deepcopy(model)
    placement = BlockListPlacement("blocks", 3, (("norm", "norm"),), (Region(0, 2, action, ACTIONS[action]),))
    apply_policy(model, RecomputePolicy(BatchShape(5, 2, 1, 10), (placement,)))
    twin = copy.deepcopy(model)
    expected = trained(plain)
    for each in (model, twin):
        found = trained(each)
        assert found.keys() == expected.keys()
        assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    means = [value for name, value in expected.items() if name.endswith("running_mean")]
    assert len(means) == 3
    assert all(value.any() for value in means)


def test_the_buffers_themselves_are_back_also_after_an_error() -> None:
    layer = nn.BatchNorm1d(4)
    buffers = dict(layer.named_buffers())
    with pytest.raises(ValueError, match="expected 2D or 3D input"):
        _run_held(layer, torch.randn(8, 4), torch.randn(8))
    assert all(buffer is buffers[name] for name, buffer in layer.named_buffers())
    assert int(layer.num_batches_tracked or 0) == 0


def _run_held(layer: nn.Module, *inputs: torch.Tensor) -> None:
    with statistics_held([layer]):
        for each in inputs:
            layer(each)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Sequential(nn.BatchNorm2d(3)), True),
        (nn.BatchNorm2d(3).eval(), False),
        (nn.BatchNorm2d(3, track_running_stats=False), False),
        (nn.InstanceNorm2d(3), False),
        (nn.LayerNorm(3), False),
    ],
    ids=["within", "frozen", "untracked", "instance", "layer"],
)
def test_only_layers_that_count_are_held(layer: nn.Module, expected: bool) -> None:
    assert keeps_statistics(layer) is expected
