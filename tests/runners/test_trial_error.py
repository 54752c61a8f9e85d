from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from runners.trial_error import explain_error


class Twice(nn.Module):
    """Calls its body under checkpoint; the body sees how often it was called."""

    def __init__(self, body: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
        super().__init__()
        self.body = body
        self.calls = 0

    def run(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.body(x, self.calls)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.run, x, use_reentrant=False)


class ReadsTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0] + gradient * ctx.saved_tensors[0]


def error_of(body: Callable[[torch.Tensor, int], torch.Tensor]) -> BaseException:
    x = torch.randn(4, 6, requires_grad=True)
    try:
        Twice(body)(x).sum().backward()
    except Exception as error:  # noqa: BLE001  # whatever torch raises is what is tried here
        return error
    raise AssertionError("nothing was raised")


class TestRebuilds:
    @pytest.mark.parametrize(
        ("body", "parts"),
        [
            (
                lambda x, calls: torch.cat([x] * calls).square(),
                ["h.3 did not repeat itself", "larger the second time", "kept state", "use_cache"],
            ),
            (
                lambda x, calls: x[: 5 - 2 * calls].square(),
                ["h.3 did not repeat itself", "shapes changed", "(first [3, 6], then [1, 6]; token counts changed"],
            ),
            (
                lambda x, calls: x.sin() if calls == 2 else x.sin().exp().tanh(),
                ["h.3 did not repeat itself", "another number of tensors", "another path the second time", "use_cache"],
            ),
            (
                lambda x, calls: ReadsTwice.apply(x),
                ["h.3 holds an operation that reads its saved tensors more than once in backward"],
            ),
            (
                lambda x, calls: (x if calls == 1 else x.double()).square().float(),
                ["h.3 did not repeat itself", "types or devices", "(first float32 on cpu, then float64 on cpu)"],
            ),
        ],
        ids=["grows", "other shapes", "other path", "reads twice", "other type"],
    )
    def test_is_told_in_words_with_the_region(
        self, body: Callable[[torch.Tensor, int], torch.Tensor], parts: list[str]
    ) -> None:
        reason, detail = explain_error(error_of(body), None, "h.3")
        assert [part for part in parts if part not in reason] == [], reason
        assert "\n" not in reason
        assert "torch" in detail
        assert len(detail) > len(reason)

    def test_region_that_is_not_known_is_still_a_sentence(self) -> None:
        reason, _ = explain_error(error_of(lambda x, calls: torch.cat([x] * calls).square()), None, None)
        assert reason.startswith("a recompute region did not repeat itself")


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(7, 7)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList([nn.Identity(), Broken()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.h:
            x = block(x)
        return x


def raised_by(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except Exception as error:  # noqa: BLE001  # as above
        return error
    raise AssertionError("nothing was raised")


class TestOtherErrors:
    def test_names_the_innermost_block_and_the_users_last_line(self) -> None:
        model = Model()
        reason, detail = explain_error(raised_by(lambda: model(torch.ones(2, 3))), model, None)
        assert reason.startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied")
        assert "; in h.1; at " in reason
        assert reason.endswith(f"{Path(__file__).name}:{detail_line(detail)}: return x @ torch.ones(7, 7)")

    def test_model_is_not_needed(self) -> None:
        reason, _ = explain_error(raised_by(lambda: {}["missing"]), None, None)
        assert reason.startswith("KeyError: 'missing'; at ")

    def test_long_messages_are_cut_and_lines_joined(self) -> None:
        def complain() -> None:
            raise ValueError("first line\nsecond line " + "x" * 5000)

        reason, detail = explain_error(raised_by(complain), None, None)
        assert reason.startswith("ValueError: first line second line xxx")
        assert len(reason) <= 400
        assert "...; at " in reason
        assert len(detail) > 5000

    def test_the_users_line_outlives_a_long_message(self) -> None:
        def complain() -> None:
            raise ValueError("x" * 5000)

        reason, _ = explain_error(raised_by(complain), None, None)
        assert f"; at {Path(__file__).name}:" in reason

    def test_error_without_a_message(self) -> None:
        def complain() -> None:
            raise RuntimeError

        reason, _ = explain_error(raised_by(complain), None, None)
        assert reason.startswith("RuntimeError: no message; at ")


def detail_line(detail: str) -> int:
    lines = [line for line in detail.splitlines() if Path(__file__).name in line]
    return int(lines[-1].split("line ")[1].split(",")[0])
