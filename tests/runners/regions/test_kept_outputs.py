from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from runners.apply_policy import apply_policy
from runners.measure.allocation_trace import AllocationRecorder
from search_spaces.actions import selective_action
from search_spaces.policy import BatchShape, BlockListPlacement, PolicyError, RecomputePolicy, Region

WIDTH = 16


class Block(nn.Module):
    """Three products; the masks are drawn by an operator that a CPU has as a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.first(x))
        y = y * torch.bernoulli(torch.full_like(y, 0.5))
        y = F.gelu(self.second(y))
        y = y * torch.bernoulli(torch.full_like(y, 0.5))
        third: torch.Tensor = self.third(y)
        return x + third


class Stack(nn.Module):
    def __init__(self, block: type[nn.Module] = Block) -> None:
        super().__init__()
        self.h = nn.ModuleList(block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.h:
            x = block(x)
        return x.square().mean()


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


def place(model: nn.Module, *keep: str) -> None:
    placement = BlockListPlacement("h", 2, (), (Region(0, 1, selective_action(keep)),))
    apply_policy(model, RecomputePolicy(BatchShape(2, 1, 1, 2), (placement,)))


def make_model(block: type[nn.Module] = Block) -> nn.Module:
    torch.manual_seed(0)
    return Stack(block)


def train(model: nn.Module) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    torch.manual_seed(1)
    model(torch.randn(2, 4, WIDTH)).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, torch.rand(1)


@pytest.mark.parametrize(
    "keep",
    [
        ("aten.addmm.default",),
        ("aten.addmm.default[1]", "aten.gelu.default"),
        ("aten.addmm.default[::2]",),
        # Kept numbers are not drawn again: those drawn after them must not become the first ones.
        ("aten.bernoulli.default[0]",),
        ("aten.bernoulli.default[1]",),
    ],
    ids=str,
)
def test_training_is_the_same_to_the_last_bit(keep: tuple[str, ...]) -> None:
    plain, number = train(make_model())
    model = make_model()
    place(model, *keep)
    placed, same_number = train(model)
    assert [name for name in plain if not torch.equal(plain[name], placed[name])] == []
    assert torch.equal(number, same_number)


@pytest.mark.parametrize(
    ("keep", "num_rebuilt"),
    # Nothing is needed after the third product's input, so that product never runs again.
    [
        ("aten.addmm.default", 0),
        ("aten.addmm.default[0]", 2),
        ("aten.addmm.default[1::2]", 2),
        ("aten.gelu.default", 4),
    ],
)
def test_only_what_is_not_kept_runs_again(keep: str, num_rebuilt: int) -> None:
    plain, placed = Operators(), Operators()
    with plain:
        train(make_model())
    model = make_model()
    place(model, keep)
    with placed:
        train(model)
    assert placed.counts["aten.addmm.default"] - plain.counts["aten.addmm.default"] == num_rebuilt


def place_by_hand(model: nn.Module, kept_calls: Mapping[str, set[int]]) -> None:
    """The same with nothing of ours: torch's own contexts around each block."""

    def contexts() -> Any:
        num_calls: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}

        def decide(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            counts = num_calls[context.is_recompute]
            counts[str(operator)] += 1
            is_kept = counts[str(operator)] - 1 in kept_calls.get(str(operator), ())
            return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(decide)

    for block in model.get_submodule("h").children():
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=contexts)


def peak_bytes(model: nn.Module) -> int:
    recorder = AllocationRecorder()
    with recorder.recording():
        model(torch.randn(64, 4, WIDTH)).backward()
    return recorder.trace().peak()[0]


@pytest.mark.parametrize(
    ("keep", "kept_calls"),
    [
        (["aten.addmm.default"], {"aten.addmm.default": {0, 1, 2}}),
        (["aten.addmm.default[1]", "aten.gelu.default"], {"aten.addmm.default": {1}, "aten.gelu.default": {0, 1}}),
        (["aten.addmm.default[::2]"], {"aten.addmm.default": {0, 2}}),
    ],
    ids=["all", "some", "every second"],
)
def test_memory_is_that_of_torchs_own_contexts_to_the_byte(keep: list[str], kept_calls: dict[str, set[int]]) -> None:
    by_hand, placed = make_model(), make_model()
    place_by_hand(by_hand, kept_calls)
    place(placed, *keep)
    assert peak_bytes(placed) == peak_bytes(by_hand) < peak_bytes(make_model())


def test_rules_that_match_nothing_are_refused_with_what_there_is() -> None:
    model = make_model()
    place(model, "aten.mm.default", "aten.addmm.default[7]")
    with pytest.raises(
        PolicyError,
        match=r"h\.0 names aten\.addmm\.default\[7\], aten\.mm\.default, which it did not run; it runs .*gelu",
    ):
        train(model)


def test_a_rule_beside_others_that_matches_nothing_is_warned_of_once() -> None:
    model = make_model()
    place(model, "aten.mm.default", "aten.addmm.default")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        train(model)
        train(model)
    assert len(caught) == 1
    assert "names aten.mm.default, which it did not run" in str(caught[0].message)


def test_an_operator_that_torch_does_not_have_is_refused_and_changes_nothing() -> None:
    model = make_model()
    with pytest.raises(PolicyError, match=r"keep of h\.0 names 'aten\.multiply_all\.default', an operator that this"):
        place(model, "aten.multiply_all.default")
    assert [name for name, module in model.named_modules() if "forward" in vars(module)] == []


class EditingBlock(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        kept = y.clone()
        kept.mul_(2.0)
        third: torch.Tensor = self.third(F.gelu(self.second(F.gelu(kept))))
        return x + third


def test_a_kept_output_that_is_edited_in_place_is_an_error() -> None:
    model = make_model(EditingBlock)
    place(model, "aten.clone.default")
    with pytest.raises(RuntimeError, match="cached during selective activation checkpoint has been mutated"):
        train(model)
