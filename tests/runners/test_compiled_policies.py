from __future__ import annotations

import copy
import io
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config

from runners.apply_policy import apply_policy
from runners.compiler import compiling_afresh, why_no_compiler
from runners.proof.randomness import seed_everything
from runners.trial import TrialStatus, Verdict
from runners.worker import TrialWorker
from runners.workloads.gpt import GPT, gpt
from runners.workloads.load import load_workload
from search_spaces.policy import BatchShape, BlockListPlacement, PolicyError, RecomputePolicy, Region

Trials = Any
UNITS = (("attention", "attn"), ("mlp", "mlp"))
MIXTURE = (Region(0, 1, "segment", 2), Region(2, 2, "block"), Region(3, 3, "attention+mlp"))
modes = pytest.mark.parametrize("mode", ["blocks", "model"])


def make_model() -> GPT:
    torch.manual_seed(0)
    return gpt(n_layer=5, n_embd=16, n_head=2, vocab_size=32, max_sequence_length=16, dropout=0.2)


def make_policy(mode: str, *regions: Region) -> RecomputePolicy:
    return RecomputePolicy(BatchShape(2, 1, 1, 2), (BlockListPlacement("blocks", 5, UNITS, regions),), compile=mode)


class TestInPlace:
    @modes
    def test_names_and_saved_weights_are_those_of_the_plain_model(self, mode: str) -> None:
        model, plain = make_model(), make_model()
        apply_policy(model, make_policy(mode, *MIXTURE))
        assert list(model.state_dict()) == list(plain.state_dict())
        assert [name for name, _ in model.named_modules()] == [name for name, _ in plain.named_modules()]
        plain.load_state_dict(model.state_dict())

    @modes
    def test_undo_leaves_no_trace_and_redo_puts_the_same_calls_back(self, mode: str) -> None:
        model = make_model()
        before = [dict(vars(module)) for module in model.modules()]
        applied = apply_policy(model, make_policy(mode, *MIXTURE))
        in_force = [vars(module).get("forward") for module in model.modules()]
        applied.undo()
        assert [dict(vars(module)) for module in model.modules()] == before
        applied.redo()
        assert all(
            now is then
            for now, then in zip([vars(module).get("forward") for module in model.modules()], in_force, strict=True)
        )

    def test_redo_is_refused_while_another_policy_is_in_force(self) -> None:
        model = make_model()
        applied = apply_policy(model, make_policy("blocks", *MIXTURE))
        applied.undo()
        apply_policy(model, make_policy("blocks", Region(0, 4, "block")))
        with pytest.raises(RuntimeError, match=r"GPTBlock.forward is replaced already; undo that first"):
            applied.redo()

    @modes
    def test_a_second_policy_is_refused(self, mode: str) -> None:
        model = make_model()
        apply_policy(model, make_policy(mode))
        with pytest.raises(PolicyError, match="is already recomputed or compiled by a policy; undo that one first"):
            apply_policy(model, make_policy("blocks", Region(0, 4, "block")))

    @modes
    def test_a_copy_calls_its_own_blocks(self, mode: str) -> None:
        model = make_model()
        apply_policy(model, make_policy(mode, *MIXTURE))
        copied = copy.deepcopy(model)
        for module in copied.modules():
            call = vars(module).get("forward")
            original = getattr(getattr(call, "__self__", call), "original", None)
            while hasattr(original, "original"):
                original = original.original
            assert original is None or original.__self__ in set(copied.modules())

    @modes
    def test_a_model_under_a_compiled_policy_can_be_saved_whole(self, mode: str) -> None:
        model = make_model()
        apply_policy(model, make_policy(mode, Region(2, 2, "block")))
        loaded = pickle.load(io.BytesIO(pickle.dumps(model)))
        assert list(loaded.state_dict()) == list(model.state_dict())


def test_a_machine_without_a_compiler_is_found_out() -> None:
    assert why_no_compiler("cpu") is None
    with inductor_config.patch({"cpp.cxx": ("no-such-compiler",)}):
        assert why_no_compiler("cpu") == "torch finds no C++ compiler on this machine (it looks for $CXX, then g++)"
        assert why_no_compiler("cuda") is None


@pytest.mark.slow
class TestTrials:
    """Each compiles C++: seconds where the compiler's cache on disk is warm, a minute where it is not."""

    def test_regions_are_proven_and_a_rebuild_that_draws_other_masks_is_a_mismatch(self, trials: Trials) -> None:
        maker = trials("runners.workloads.gpt:gpt", num_blocks=5)
        maker.args = {"n_layer": 5, "n_embd": 16, "n_head": 2, "vocab_size": 32, "dropout": 0.2}
        maker.options = {"sequence_length": 16, "compile": "blocks"}
        plain, mixed = maker.run("none", micro=4), maker.run(MIXTURE, micro=4)
        assert plain.status is mixed.status is TrialStatus.COMPLETED
        assert (plain.verification.verdict, mixed.verification.verdict) == (Verdict.MATCH, Verdict.MATCH)
        assert "compiled, that one is off by" in mixed.verification.reference
        assert mixed.peak_memory_bytes < plain.peak_memory_bytes
        # Blocks 3 and 4 differ in what they recompute inside, so their code does.
        assert (plain.num_recompiles, mixed.num_recompiles) == (0, 1)
        assert plain.compile_time_s > 0
        assert plain.recompute_time_s == 0
        assert mixed.recompute_time_s is None
        assert maker.run("block", micro=4, rng=False).verification.verdict is Verdict.MISMATCH

    @modes
    def test_budgets_of_the_compiler_are_kept_apart_in_one_process(self, mode: str) -> None:
        """As in a playoff: code that was made within one budget must not run under another."""
        with compiling_afresh():
            kept = [bytes_kept(mode, budget) for budget in (None, 0.0, 0.5, 1.0)]
        assert kept[0] == kept[3]
        assert kept[1] < kept[2] < kept[0]

    @pytest.mark.parametrize(("dropout", "verdict"), [(0.0, Verdict.MATCH), (0.2, Verdict.MISMATCH)])
    def test_a_budget_is_refused_where_the_compiler_draws_other_masks(
        self, trials: Trials, dropout: float, verdict: Verdict
    ) -> None:
        """As torch 2.13 does: what it rebuilds within a budget is dropped out anew, unlike in forward."""
        maker = trials("runners.workloads.gpt:gpt", num_blocks=3)
        maker.args = {"n_layer": 3, "n_embd": 16, "n_head": 2, "vocab_size": 32, "dropout": dropout}
        maker.options = {"sequence_length": 16, "compile": "blocks"}
        spec = maker.spec("none")
        policy = replace(spec.policy, compile="blocks", compile_memory_budget=0.2)
        result = TrialWorker().run(spec.model_copy(update={"policy": policy}))
        assert result.verification.verdict is verdict, result.verification
        if verdict is Verdict.MISMATCH:
            assert result.verification.reason.startswith("the gradient of blocks.")
            assert result.verification.reason.endswith("compile_memory_budget, or train without dropout")
        assert result.recompute_time_s is None

    def test_masks_that_are_rebuilt_otherwise_are_a_mismatch(self, trials: Trials) -> None:
        """Nobody tells the compiler that an operator of the model draws, so it rebuilds a mask as any other tensor."""
        maker = trials("unannounced.py:unannounced_dropout", options={"compile": "blocks"}, num_blocks=2)
        spec = maker.spec("none")
        within = replace(spec.policy, compile="blocks", compile_memory_budget=0.0)
        verdicts = [
            TrialWorker().run(spec.model_copy(update={"policy": policy})).verification.verdict
            for policy in (spec.policy, within)
        ]
        assert verdicts == [Verdict.MATCH, Verdict.MISMATCH]

    def test_a_compiler_that_changes_the_gradient_is_a_mismatch(self, trials: Trials) -> None:
        """Blocks read a buffer and then edit it in place; torch 2.13 rebuilds in backward from what was edited.

        The difference quotient of the loss is on the side of plain code, so the verdict is right whatever a later torch
        makes of it.
        """
        maker = trials("state.py:moving_centre", options={"compile": "blocks", "dtype": "float64"})
        quotient, plain, compiled = slopes_along_a_line(maker)
        assert plain == pytest.approx(quotient, rel=1e-6)
        is_right = compiled == pytest.approx(quotient, rel=1e-6)
        result = maker.run("none")
        assert result.verification.verdict is (Verdict.MATCH if is_right else Verdict.MISMATCH)
        if not is_right:
            assert "compiled, the plain model trains otherwise than as given: the gradient of" in (
                result.verification.reason
            )

    def test_a_buffer_that_is_replaced_and_not_edited_is_compiled_right(self, trials: Trials) -> None:
        maker = trials("state.py:moving_centre", args={"replaces": True}, options={"compile": "blocks"})
        assert maker.run("none").verification.verdict is Verdict.MATCH


def slopes_along_a_line(maker: Any) -> tuple[float, float, float]:
    """How steeply the first step's loss rises as all parameters move alike: its quotient, and by two gradients."""
    workload = load_workload(maker.workload())

    def loss_and_slope(shift: float, policy: RecomputePolicy | None = None) -> tuple[float, float]:
        seed_everything(0)
        model, batch = workload.build_model(), workload.make_batch(8)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += shift
        if policy is not None:
            apply_policy(model, policy)
        loss = model(**batch)
        loss.backward()
        return float(loss), sum(float(parameter.grad.sum()) for parameter in model.parameters())

    step = 1e-5
    quotient = (loss_and_slope(step)[0] - loss_and_slope(-step)[0]) / (2 * step)
    compiled = replace(maker.policy("none", micro=8), compile="blocks")
    return quotient, loss_and_slope(0.0)[1], loss_and_slope(0.0, compiled)[1]


def bytes_kept(mode: str, budget: float | None) -> int:
    """By a forward pass for its backward."""
    torch.manual_seed(0)
    model = gpt(n_layer=3, n_embd=32, n_head=2, vocab_size=32, max_sequence_length=16, dropout=0.2)
    placement = BlockListPlacement("blocks", 3, UNITS)
    apply_policy(
        model, RecomputePolicy(BatchShape(2, 1, 1, 2), (placement,), compile=mode, compile_memory_budget=budget)
    )
    storages: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(**model.example_batch(2, 16))
    del loss
    return sum(storages.values())
