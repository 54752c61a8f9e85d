from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from runners.measure.phases import Phase, PhaseSwitch
from runners.measure.training_step import TrainingStep, to_device
from runners.workloads.output import loss_of, loss_weight_of


class TokenMean(nn.Module):
    """Mean of ``weight * x`` over the entries that the mask keeps."""

    def __init__(self, weighted: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.unused = nn.Parameter(torch.ones(()))
        self.weighted = weighted

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> dict[str, Any]:
        loss = (self.weight * x[keep]).mean()
        return {"loss": loss, "loss_weight": keep.sum() if self.weighted else None}


class Outputs:
    tokens_per_sample = None
    loss_of = staticmethod(loss_of)
    loss_weight_of = staticmethod(loss_weight_of)

    def build_model(self) -> nn.Module:
        return TokenMean(weighted=False)

    def make_batch(self, micro_batch_size: int, sequence_length: int | None = None) -> dict[str, Any]:
        return {"x": torch.ones(micro_batch_size), "keep": torch.ones(micro_batch_size, dtype=torch.bool)}


BATCHES = [
    {"x": torch.tensor([1.0, 3.0]), "keep": torch.tensor([True, False])},
    {"x": torch.tensor([5.0, 6.0]), "keep": torch.tensor([True, True])},
]


def make_step(*, weighted: bool = False, lr: float = 0.5) -> TrainingStep:
    model = TokenMean(weighted)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    device = torch.device("cpu")
    return TrainingStep(model, optimizer, Outputs(), device=device, autocast=None, phases=PhaseSwitch())


class TestLoss:
    @pytest.mark.parametrize(
        ("weighted", "expected"), [(False, (1.0 + 5.5) / 2), (True, (1.0 + 5.0 + 6.0) / 3)], ids=["equal", "weighted"]
    )
    def test_loss_and_gradient_are_averaged_alike(self, weighted: bool, expected: float) -> None:
        step = make_step(weighted=weighted)
        assert step.accumulate(BATCHES) == pytest.approx(expected)
        assert float(step.model.weight.grad) == pytest.approx(expected)

    def test_step_updates_by_the_averaged_gradient_and_drops_it(self) -> None:
        step, ready = make_step(lr=0.5), []
        loss = step.run(BATCHES, gradients_ready=lambda model: ready.append(float(model.weight.grad)))
        assert ready == [3.25]
        assert loss == 3.25
        assert step.model.weight.item() == pytest.approx(1.0 - 0.5 * 3.25)
        assert step.model.weight.grad is None

    def test_gradients_do_not_carry_over_to_the_next_step(self) -> None:
        step, ready = make_step(lr=0.0), []
        for _ in range(2):
            step.run(BATCHES, gradients_ready=lambda model: ready.append(float(model.weight.grad)))
        assert ready == [3.25, 3.25]

    def test_parameter_that_no_optimizer_holds_gets_no_stale_gradient(self) -> None:
        step = make_step()
        step.optimizer = torch.optim.SGD([step.model.unused], lr=0.1)
        step.run(BATCHES)
        assert step.model.weight.grad is None


class TestPhases:
    def test_every_part_is_reported_in_order_once_per_micro_batch(self) -> None:
        seen: list[Phase] = []

        class Watcher:
            def watching(self, phase: Phase) -> Any:
                seen.append(phase)
                return torch.no_grad() if phase is Phase.OPTIMIZER else torch.enable_grad()

        step = make_step()
        with step.phases.watched_by(Watcher()):
            step.run(BATCHES)
        assert seen == [Phase.FORWARD, Phase.BACKWARD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]

    def test_preparation_comes_before_each_micro_batch(self) -> None:
        calls: list[int] = []
        make_step().run(BATCHES, before_micro_batch=lambda: calls.append(1))
        assert len(calls) == 2


class TestAutocast:
    def test_forward_runs_in_lower_precision_and_gradients_stay_those_of_the_parameters(self) -> None:
        class Matrix(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = self.linear(x)
                assert y.dtype is torch.bfloat16
                return y.float().mean()

        model = Matrix()
        step = TrainingStep(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            Outputs(),
            device=torch.device("cpu"),
            autocast=torch.bfloat16,
            phases=PhaseSwitch(),
        )
        step.accumulate([{"x": torch.ones(2, 4)}])
        assert model.linear.weight.grad.dtype is torch.float32


def test_nests_of_inputs_reach_the_device_with_everything_else_untouched() -> None:
    value = {"a": [torch.ones(1), ("text", 3)], "b": {"c": torch.zeros(2)}, "d": None}
    moved = to_device(value, torch.device("meta"))
    assert moved["a"][0].device.type == moved["b"]["c"].device.type == "meta"
    assert moved["a"][1] == ("text", 3)
    assert moved["d"] is None
