from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from runners.dry_run.dry_run import DryRun
from runners.dry_run.fake_values import NoDryRunError
from runners.workloads.load import load_workload
from search_spaces.policy import BatchShape, RecomputePolicy

#: Relative. What is not seen: the loss of the micro-batch before (4 bytes), and scratch of kernels on tensors as small
#: as these.
TOLERANCES = {"llama_bf16": 0.005, "vit": 0.003, "gpt_autocast_sgd": 0.002, "recurrent": 0.006}


#: Each has something that the others lack: ties, code of its own kind, layers that are copies, scratch of kernels.
QUICK = ("gpt", "gpt2", "copied_layers", "convolutions", "recurrent")
OTHERS = ("llama", "llama_bf16", "bert", "t5", "vit", "gpt_autocast_sgd", "mixtral")


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_peak_is_the_measured_one(small_model: Any, name: str) -> None:
    model = small_model(name)
    for policy in model.policies(2, seed=1):
        measured = model.measured_peak_bytes(policy)
        assert model.dry_run.peak_bytes(policy) == pytest.approx(measured, rel=TOLERANCES.get(name, 0.0005))


def test_order_of_dry_runs_does_not_matter(small_model: Any) -> None:
    model = small_model("gpt")
    policies = list(model.policies(4, seed=2))
    forwards = [model.dry_run.peak_bytes(policy) for policy in policies]
    fresh = DryRun(load_workload(model.spec), model.spec)
    assert [fresh.peak_bytes(policy) for policy in reversed(policies)] == forwards[::-1]


def test_real_random_streams_and_gradient_modes_are_as_before(small_model: Any) -> None:
    model = small_model("gpt")
    original = torch.get_rng_state
    model.dry_run.peak_bytes(next(model.policies(1, seed=3)))
    assert torch.get_rng_state is original
    assert torch.is_grad_enabled()
    assert float(torch.ones(()) + 1) == 2.0


def test_totals_are_those_of_the_step(small_model: Any) -> None:
    model = small_model("gpt")
    num_parameters = sum(parameter.numel() for parameter in model.dry_run.model.parameters())
    totals = model.dry_run.totals(1)
    assert totals.parameter_bytes == 4 * num_parameters
    assert totals.gradient_bytes == totals.parameter_bytes
    # Two moments per parameter and one count of steps per tensor.
    assert totals.optimizer_state_bytes == 8 * num_parameters + 4 * len(list(model.dry_run.model.parameters()))
    assert totals.update.delta_bytes == -totals.gradient_bytes


def test_stretches_add_up_to_the_peak_and_name_every_block(small_model: Any) -> None:
    model = small_model("gpt")
    policy = RecomputePolicy(BatchShape.split(global_batch_size=4, micro_batch_size=2))
    trace = model.dry_run.trace(policy, ["blocks"])
    assert trace.peak_bytes == model.dry_run.trace(policy).peak_bytes
    assert trace.calls == ((0, 1, 2, 3),)
    parts = [t.key.part for t in trace.stretches]
    assert parts == ["fixed", *["forward"] * 4, "fixed", "fixed", *["backward"] * 4, "fixed"]


def test_flops_of_recompute_are_a_forward_pass(small_model: Any) -> None:
    model = small_model("gpt")
    batch = BatchShape.split(global_batch_size=4, micro_batch_size=4)
    plain = model.dry_run.trace(RecomputePolicy(batch), ["blocks"])
    placement = model.choices.block_lists[0].place(["block"] * 4)
    placed = model.dry_run.trace(RecomputePolicy(batch, (placement,)), ["blocks"], plain=plain)
    block = {t.key: t.stretch.flops for t in plain.stretches}
    again = {t.key: t.stretch.flops for t in placed.stretches}
    forward, backward = (next(k for k in block if k.part == part) for part in ("forward", "backward"))
    assert again[forward] == block[forward]
    # A dropout ends the block and has saved its mask, so the rebuild runs through all products before it.
    assert again[backward] - block[backward] == block[forward]


def test_sparse_gradients_take_a_micro_batch_of_their_own(trials: Any) -> None:
    maker = trials("operators.py:words", args={"sparse": True}, options={"sequence_length": 5, "optimizer_name": "sgd"})
    dry_run = DryRun(load_workload(maker.workload()), maker.workload())
    assert dry_run.peak_bytes(maker.policy("block", micro=2)) > 0


def test_model_that_decides_by_a_drawn_value_is_refused(trials: Any) -> None:
    workload = trials("chance.py:layer_drop_inside", args={"source": "torch"}, num_blocks=4).workload()
    policy = RecomputePolicy(BatchShape.split(global_batch_size=8, micro_batch_size=4))
    with pytest.raises(NoDryRunError, match="asks for the value of a tensor"):
        DryRun(load_workload(workload), workload).peak_bytes(policy)


BIG_MODEL = """
import resource
from runners.dry_run.dry_run import DryRun
from runners.trial import WorkloadSpec
from runners.workloads.load import load_workload
from search_spaces.policy import BatchShape, RecomputePolicy
spec = WorkloadSpec(
    model_factory="runners.workloads.gpt:gpt",
    model_args={"n_layer": 4, "n_embd": 8192, "n_head": 64, "vocab_size": 32000},
    sequence_length=1024,
)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
peak = DryRun(load_workload(spec), spec, tries_kernels=False).peak_bytes(RecomputePolicy(BatchShape(8, 1, 1, 8)))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(peak, 1024 * (after - before))
"""


def test_nothing_is_allocated_for_a_model_that_does_not_fit() -> None:
    run = subprocess.run([sys.executable, "-c", BIG_MODEL], capture_output=True, text=True, check=True, timeout=100)
    peak, grown = map(int, run.stdout.split())
    assert peak > 50 * 2**30
    assert grown < 200 * 2**20
