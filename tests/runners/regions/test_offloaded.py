from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import nn

from runners.apply_policy import apply_policy
from runners.dry_run.dry_run import DryRun
from runners.trial import Verdict, WorkloadSpec
from runners.workloads.gpt import GPT, gpt
from runners.workloads.load import load_workload
from search_spaces.policy import BatchShape, BlockListPlacement, PolicyError, RecomputePolicy, Region

Trials = Any


def make_policy(num_blocks: int, *regions: Region, mode: str | None = None) -> RecomputePolicy:
    placement = BlockListPlacement("blocks", num_blocks, (("attention", "attn"), ("mlp", "mlp")), regions)
    return RecomputePolicy(BatchShape(2, 1, 1, 2), (placement,), compile=mode)


class Chain(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().sum()


class Awkward(nn.Module):
    """Saves views, a tensor before and after an edit in place, a transposed one, a sparse one and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 12)
        self.scale = nn.Parameter(torch.full((4,), 0.5))
        self.register_buffer("table", torch.linspace(0.5, 1.5, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.linear(x).chunk(3, dim=-1)
        mixed = (q @ k.transpose(-1, -2)).sigmoid() @ v
        edited = mixed.clone()
        before = edited.square().sum()  # Saved before the edit, as a copy of its own.
        edited = edited * 2
        edited.mul_(self.table).relu_()
        sparse = torch.sparse.mm(torch.eye(4).to_sparse(), self.scale.diag())
        shifted = torch.view_as_complex(edited.reshape(*edited.shape[:-1], 2, 2).contiguous())
        turned = torch.view_as_real(shifted.conj() * shifted).flatten(-2)
        return torch.cat([turned @ sparse, edited * self.scale], dim=-1) + before.tanh()


def gradients(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(2)
    model(*args, **kwargs).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def small_gpt() -> GPT:
    torch.manual_seed(0)
    return gpt(n_layer=4, n_embd=16, n_head=2, vocab_size=32, max_sequence_length=16, dropout=0.2)


class TestGradients:
    def test_are_those_of_the_plain_model_whatever_is_saved(self) -> None:
        torch.manual_seed(0)
        model = Chain(Awkward(), Awkward(), Awkward())
        x = torch.randn(2, 5, 8)
        plain = gradients(model, x)
        apply_policy(model, make_policy(3, Region(0, 2, "offload")))
        assert_equal(gradients(model, x), plain)

    def test_of_an_input_that_wants_one_are_those_of_the_plain_model(self) -> None:
        model = Chain(Awkward())
        x = torch.randn(2, 5, 8, requires_grad=True)
        model(x).backward()
        plain, x.grad = x.grad, None
        apply_policy(model, make_policy(1, Region(0, 0, "offload")))
        model(x).backward()
        assert torch.equal(x.grad, plain)

    def test_mix_with_recompute_and_come_again_in_a_second_backward(self) -> None:
        model = small_gpt()
        batch = model.example_batch(2, 8)
        plain = gradients(model, **batch)
        apply_policy(model, make_policy(4, Region(0, 1, "offload"), Region(2, 2, "block"), Region(3, 3, "mlp")))
        assert_equal(gradients(model, **batch), plain)
        torch.manual_seed(2)
        model.zero_grad()
        loss = model(**batch)
        loss.backward(retain_graph=True)
        loss.backward()
        assert all(torch.allclose(p.grad, 2 * plain[name]) for name, p in model.named_parameters())

    def test_of_a_copied_model_are_its_own(self) -> None:
        model = small_gpt()
        batch = model.example_batch(2, 8)
        apply_policy(model, make_policy(4, Region(0, 3, "offload")))
        copied = copy.deepcopy(model)
        assert_equal(gradients(copied, **batch), gradients(model, **batch))
        assert copied.blocks[0].forward.original.__self__ is copied.blocks[0]


class TestWhatMoves:
    def test_no_parameter_and_no_buffer_is_copied_and_each_storage_only_once(self) -> None:
        model = small_gpt()
        batch = model.example_batch(2, 8)
        saved_bytes = _saved_bytes(model, batch)
        apply_policy(model, make_policy(4, Region(0, 3, "offload")))
        gc.collect()
        before = _live_bytes()
        loss = model(**batch)
        gc.collect()
        # Hidden states between blocks live on as long as someone holds them; nobody does.
        assert 0 < _live_bytes() - before <= saved_bytes
        del loss

    def test_under_no_grad_nothing_is(self) -> None:
        model = small_gpt()
        apply_policy(model, make_policy(4, Region(0, 3, "offload")))
        with torch.no_grad():
            model(**model.example_batch(2, 8))
        assert model.blocks[0].forward._line.last() is None


def _saved_bytes(model: nn.Module, batch: dict[str, torch.Tensor]) -> int:
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(**batch)
    total = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    del loss
    return total


def _live_bytes() -> int:
    # Other tests may have left fake ones, which have no memory.
    tensors = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def test_compiled_blocks_are_refused() -> None:
    with pytest.raises(PolicyError, match="has action offload in a compiled policy, but what compiled code keeps"):
        make_policy(4, Region(0, 3, "offload"), mode="blocks")


def test_a_trial_is_proven_and_counts_what_it_copies(trials: Trials) -> None:
    maker = trials("chance.py:dropout", num_blocks=3)
    plain, offloaded = maker.run("none", micro=4), maker.run("offload", micro=4)
    assert offloaded.verification.verdict is Verdict.MATCH
    assert offloaded.recompute_time_s == 0
    assert (plain.offloaded_bytes, offloaded.offloaded_bytes > 0) == (0, True)
    # The host is this machine: the copies are counted, and nothing is gained.
    assert offloaded.peak_memory_bytes >= plain.peak_memory_bytes


def test_a_dry_run_for_a_device_with_memory_of_its_own_leaves_the_copies_out() -> None:
    args = {"n_layer": 4, "n_embd": 16, "n_head": 2, "vocab_size": 32}
    peaks = {}
    for device in ("cpu", "cuda"):
        spec = WorkloadSpec(
            model_factory="runners.workloads.gpt:gpt", model_args=args, sequence_length=64, device=device
        )
        dry_run = DryRun(load_workload(spec), spec)
        peaks[device] = [dry_run.peak_bytes(make_policy(4, *regions)) for regions in ((), (Region(0, 3, "offload"),))]
    (plain, on_cpu), (plain_elsewhere, on_device) = peaks["cpu"], peaks["cuda"]
    assert plain == plain_elsewhere
    assert on_cpu >= plain > on_device
