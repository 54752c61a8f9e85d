from __future__ import annotations

import copy
import gc
import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from placed_gpt import Recomputes
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from runners.apply_policy import apply_policy
from search_spaces.policy import BatchShape, BlockListPlacement, PolicyError, RecomputePolicy, Region


def load_models() -> ModuleType:
    spec = importlib.util.spec_from_file_location("inner_models", Path(__file__).parent / "models" / "inner.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


models = load_models()
ACTIVATION = "mlp..mlp.down"


def units(*, gated: bool) -> tuple[tuple[str, str], ...]:
    taken_in = "mlp.gate,mlp.up" if gated else "mlp.up"
    norm = f"norm_1..attn.q,attn.k,attn.v; norm_2..{taken_in}"
    return (("activation", ACTIVATION), ("attention", "attn"), ("mlp", "mlp"), ("norm", norm))


def policy(action: str, *, gated: bool = False, rng: bool = True, num_blocks: int = 2) -> RecomputePolicy:
    region = Region(0, num_blocks - 1, action)
    placement = BlockListPlacement("blocks", num_blocks, units(gated=gated), (region,))
    return RecomputePolicy(BatchShape(2, 1, 1, 2), (placement,), rng)


def make_model(**kinds: bool) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = models.Stack(**{"gated": False, "plain_norm": False, **kinds})
    return model


def train(model: nn.Module, *, autocast: bool = False) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Gradients of one step, and a random number drawn afterwards."""
    torch.manual_seed(1)
    x = torch.randn(2, 8, models.WIDTH)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = model(x)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return gradients, torch.rand(1)


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


KINDS = {
    "plain": {},
    "gated": {"gated": True},
    "norm of single operations": {"plain_norm": True},
    "all of it": {"gated": True, "plain_norm": True},
    "adapters with dropout": {"gated": True, "adapted": True},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("action", ["activation", "norm", "activation+norm", "activation+attention"])
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
def test_training_is_the_same_to_the_last_bit(kind: dict[str, bool], action: str, autocast: bool) -> None:
    gated = kind.get("gated", False)
    plain, number = train(make_model(**kind), autocast=autocast)
    model = make_model(**kind)
    apply_policy(model, policy(action, gated=gated))
    placed, same_number = train(model, autocast=autocast)
    assert placed.keys() == plain.keys()
    assert [name for name in plain if not torch.equal(plain[name], placed[name])] == []
    assert torch.equal(number, same_number)


@pytest.mark.parametrize("gated", [False, True])
def test_no_product_of_matrices_runs_twice(gated: bool) -> None:
    plain, placed = Operators(), Operators()
    with plain:
        train(make_model(gated=gated))
    model = make_model(gated=gated)
    apply_policy(model, policy("activation+norm", gated=gated))
    with placed:
        train(model)
    more = placed.counts - plain.counts
    assert {name: more[name] for name in ("addmm", "mm", "bmm", "_scaled_dot_product_flash_attention_for_cpu")} == {
        "addmm": 0,
        "mm": 0,
        "bmm": 0,
        "_scaled_dot_product_flash_attention_for_cpu": 0,
    }
    activation = "silu" if gated else "gelu"
    assert (more[activation], more["native_layer_norm"]) == (2, 4)  # One each in both blocks, and two norms.


def forward_bytes(model: nn.Module) -> int:
    """Bytes that the CPU's allocator has handed out for a forward pass and not got back."""
    x = torch.randn(2, 64, models.WIDTH)
    gc.collect()  # What earlier tests left must not be freed meanwhile.
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        loss = model(x)
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    kept = sum(event.nbytes() for event in events if event.name() == "[memory]")
    assert loss.requires_grad
    return int(kept)


def test_units_that_meet_save_what_each_saves_alone() -> None:
    plain = forward_bytes(make_model())
    saved = {}
    for action in ("activation", "norm", "activation+norm"):
        model = make_model()
        apply_policy(model, policy(action, rng=False))
        saved[action] = plain - forward_bytes(model)
    width = 2 * 64 * models.WIDTH * 4
    # Per block: dropout's mask and output, three times as wide (what GELU gave nobody keeps); the outputs of two norms.
    assert saved["activation"] == 2 * 2 * 3 * width
    assert saved["norm"] == 2 * 2 * width
    assert saved["activation+norm"] == saved["activation"] + saved["norm"]


ENCODER_UNITS = (("activation", "..narrowing.dense"), ("norm", "attn.norm..widening.dense"))


@pytest.mark.parametrize("action", ["activation", "norm", "activation+norm"])
def test_where_no_module_holds_the_mlp_the_same_is_rebuilt_and_saved(action: str) -> None:
    span = BlockListPlacement("blocks", 2, ENCODER_UNITS, (Region(0, 1, action),))

    def encoder(*, placed: bool, rng: bool = True) -> nn.Module:
        torch.manual_seed(0)
        model: nn.Module = models.Encoder()
        if placed:
            apply_policy(model, RecomputePolicy(BatchShape(2, 1, 1, 2), (span,), rng))
        return model

    with Operators() as plain:
        gradients, number = train(encoder(placed=False))
    with Operators() as placed:
        same_gradients, same_number = train(encoder(placed=True))
    assert [name for name in gradients if not torch.equal(gradients[name], same_gradients[name])] == []
    assert torch.equal(number, same_number)
    more = placed.counts - plain.counts
    num_rebuilt = {"gelu": 2 * ("activation" in action), "native_layer_norm": 2 * ("norm" in action)}
    assert {name: more[name] for name in num_rebuilt} == num_rebuilt
    assert (more["addmm"], more["_scaled_dot_product_flash_attention_for_cpu"]) == (0, 0)
    width = 2 * 64 * models.WIDTH * 4
    saved = forward_bytes(encoder(placed=False)) - forward_bytes(encoder(placed=True, rng=False))
    assert saved == 2 * (3 * width * ("activation" in action) + width * ("norm" in action))


def test_the_pass_is_plain_without_gradients() -> None:
    model = make_model()
    apply_policy(model, policy("activation+norm"))
    with torch.no_grad(), Operators() as operators:
        model(torch.randn(2, 8, models.WIDTH))
    assert operators.counts["gelu"] == 2


def test_nothing_is_left_behind_and_hooks_are_as_before() -> None:
    model = make_model(gated=True)
    names = [name for name, _ in model.named_modules()]
    keys = list(model.state_dict())
    applied = apply_policy(model, policy("activation+norm", gated=True))
    train(model)
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    assert [name for name, _ in model.named_modules()] == names
    assert list(model.state_dict()) == keys
    applied.undo()
    assert [name for name, module in model.named_modules() if "forward" in vars(module)] == []


def test_hooks_are_as_before_after_an_error_in_the_forward_pass() -> None:
    model = make_model()
    apply_policy(model, policy("activation"))
    model.blocks[0].mlp.last_dropout.forward = None  # type: ignore[union-attr, index]
    with pytest.raises(TypeError, match="NoneType"):
        train(model)
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None


def test_a_copy_of_the_model_recomputes_its_own_modules() -> None:
    model = make_model()
    apply_policy(model, policy("activation+norm"))
    copied = copy.deepcopy(model)
    gradients, _ = train(copied)
    assert all(p.grad is None for p in model.parameters())
    plain, _ = train(make_model())
    assert [name for name in plain if not torch.equal(plain[name], gradients[name])] == []


def test_backward_may_run_again_over_a_kept_graph() -> None:
    model = make_model()
    apply_policy(model, policy("norm"))
    torch.manual_seed(1)
    loss = model(torch.randn(2, 8, models.WIDTH))
    loss.backward(retain_graph=True)
    once = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    loss.backward()
    assert all(torch.equal(p.grad, 2 * once[name]) for name, p in model.named_parameters() if p.grad is not None)


def test_without_rng_state_dropout_differs() -> None:
    plain, _ = train(make_model())
    model = make_model()
    apply_policy(model, policy("activation", rng=False))
    placed, _ = train(model)
    assert any(not torch.equal(plain[name], placed[name]) for name in plain)


def test_an_activation_in_place_is_an_error_that_says_so() -> None:
    model = make_model(inplace=True)
    apply_policy(model, policy("activation"))
    with pytest.raises(RuntimeError, match=r"the output of up was edited in place, so .* take this unit out"):
        train(model)


def test_each_rebuild_is_told_to_the_observer() -> None:
    model = make_model()
    told = Recomputes()
    apply_policy(model, policy("activation"), observer=told)
    train(model)
    assert told.names == [f"blocks.1.{ACTIVATION}", f"blocks.0.{ACTIVATION}"]


def test_a_span_whose_modules_are_not_there_is_refused_and_changes_nothing() -> None:
    model = make_model()
    wrong = BlockListPlacement("blocks", 2, (("activation", "mlp..mlp.c_proj"),), (Region(0, 1, "activation"),))
    with pytest.raises(PolicyError, match=r"names unit 'blocks\.0\.mlp\.c_proj', which the model does not have"):
        apply_policy(model, RecomputePolicy(BatchShape(2, 1, 1, 2), (wrong,)))
    assert [name for name, module in model.named_modules() if "forward" in vars(module)] == []
