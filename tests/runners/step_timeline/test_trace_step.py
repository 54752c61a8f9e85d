from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from runners.rig import Rig, RigStep
from runners.step_timeline.records import KeptTensor, StepTimeline, TensorKind, TracedStep
from runners.trial import WorkloadSpec
from runners.worker_session import WorkerSession
from search_spaces.policy import Region

Trace = Callable[..., TracedStep]
MakeModel = Callable[..., Any]
BF16 = {"autocast": "bfloat16"}

#: What a block of kept.py keeps of 4 samples of 8 floats, 16 inside the MLP: unit, bytes, and who keeps it for whom.
KEPT_BY_A_BLOCK = [
    (None, 128, [("norm_1", "aten::native_layer_norm", "NativeLayerNormBackward0")]),
    (None, 16, [("norm_1", "aten::native_layer_norm", "NativeLayerNormBackward0")]),
    (None, 16, [("norm_1", "aten::native_layer_norm", "NativeLayerNormBackward0")]),
    ("attention", 128, [(f"attn.{name}", "aten::mm", "MmBackward0") for name in "qkv"]),
    ("attention", 128, [("attn", "aten::mm", "MmBackward0")]),
    ("attention", 128, [("attn", "aten::mm", "MmBackward0")]),
    ("attention", 64, [("attn", "aten::_softmax", "SoftmaxBackward0"), ("attn", "aten::mm", "MmBackward0")]),
    ("attention", 128, [("attn", "aten::mm", "MmBackward0")]),
    (None, 128, [("norm_2", "aten::native_layer_norm", "NativeLayerNormBackward0")]),
    (None, 16, [("norm_2", "aten::native_layer_norm", "NativeLayerNormBackward0")]),
    (None, 16, [("norm_2", "aten::native_layer_norm", "NativeLayerNormBackward0")]),
    ("mlp", 128, [("mlp.up", "aten::addmm", "AddmmBackward0")]),
    ("mlp", 256, [("mlp", "aten::gelu", "GeluBackward0")]),
    ("mlp", 256, [("mlp.dropout", "aten::mul", "MulBackward0")]),
    ("mlp", 256, [("mlp.down", "aten::addmm", "AddmmBackward0")]),
]
BLOCK_BYTES = sum(num_bytes for _, num_bytes, _ in KEPT_BY_A_BLOCK)


def activations(step: TracedStep, block: str) -> list[KeptTensor]:
    return [tensor for tensor in step.tensors if tensor.block == block and tensor.kind is TensorKind.ACTIVATION]


def described(tensor: KeptTensor) -> tuple[str | None, int, list[tuple[str, str, str | None]]]:
    savers = [(s.module.removeprefix(f"{tensor.block}."), s.operator, s.node) for s in tensor.savers]
    return tensor.unit, tensor.num_bytes, savers


@pytest.mark.parametrize("block", ["blocks.0", "blocks.1"])
def test_what_a_plain_block_keeps_is_what_was_computed_by_hand(trace: Trace, block: str) -> None:
    tensors = activations(trace("blocks"), block)
    found = sorted(map(described, tensors), key=str)
    assert found == sorted(KEPT_BY_A_BLOCK, key=str)
    assert {tensor.born_in for tensor in tensors} == {"forward"}


def test_views_are_told_with_their_own_shapes(trace: Trace) -> None:
    tensors = activations(trace("blocks"), "blocks.0")
    weights = next(tensor for tensor in tensors if tensor.num_bytes == 64)
    assert [(saver.shape, saver.dtype) for saver in weights.savers] == [((4, 4), "float32")] * 2
    (k,) = (saver for tensor in tensors for saver in tensor.savers if saver.shape == (8, 4))
    assert (k.module, k.operator) == ("blocks.0.attn", "aten::mm")


def test_last_uses_come_in_the_reverse_order_of_forward(trace: Trace) -> None:
    step = trace("blocks")
    order = [
        tensor.savers[0].module.removeprefix("blocks.")
        for tensor in sorted(step.tensors, key=lambda tensor: tensor.last_use_s or 0.0)
        if tensor.kind is TensorKind.ACTIVATION and tensor.block is not None
    ]
    units = [module for module, _ in itertools.groupby(order)]
    mlp, attention = ["mlp.down", "mlp.dropout", "mlp", "mlp.up", "norm_2"], ["attn", "attn.q", "norm_1"]
    assert units == [f"{block}.{module}" for block in (1, 0) for module in [*mlp, *attention]]


def test_each_tensor_is_born_then_kept_then_used_then_freed(trace: Trace) -> None:
    step = trace("blocks", "block")
    tensors = [tensor for tensor in step.tensors if tensor.kind is TensorKind.ACTIVATION]
    for tensor in tensors:
        moments = [tensor.birth_s, tensor.savers[0].saved_s, tensor.last_use_s, tensor.freed_s]
        assert moments == sorted(moments, key=float), tensor  # type: ignore[arg-type]  # one of None would raise
    assert len(tensors) > 2 * len(KEPT_BY_A_BLOCK)


def test_a_recomputed_block_keeps_its_input_and_makes_the_rest_anew(trace: Trace) -> None:
    step = trace("blocks", "block")
    for block in ("blocks.0", "blocks.1"):
        tensors = activations(step, block)
        kept = [tensor for tensor in tensors if tensor.born_in == "forward"]
        assert [(t.num_bytes, t.savers[0].module, t.savers[0].operator) for t in kept] == [(128, block, "region input")]
        assert [saver.module for saver in kept[0].savers[1:]] == [f"{block}.norm_1"]
        rebuilt = sorted(((t.unit, t.num_bytes) for t in tensors if t.born_in == "recompute"), key=str)
        # The first norm's input is the region's, which is there already.
        assert rebuilt == sorted(((unit, size) for unit, size, _ in KEPT_BY_A_BLOCK[1:]), key=str)
        spans = [span for span in step.phases if span.region == block]
        assert len(spans) == 1
        births = [t.birth_s for t in tensors if t.born_in == "recompute" and t.birth_s is not None]
        assert spans[0].start_s < min(births) <= max(births) < spans[0].end_s


def test_a_recomputed_unit_is_rebuilt_alone(trace: Trace) -> None:
    tensors = activations(trace("blocks", (Region(1, 1, "mlp"),)), "blocks.1")
    assert {tensor.unit for tensor in tensors if tensor.born_in == "recompute"} == {"mlp"}
    (region_input,) = (tensor for tensor in tensors if tensor.savers[0].operator == "region input")
    assert (region_input.unit, region_input.num_bytes, region_input.born_in) == ("mlp", 128, "forward")


def test_what_an_offloaded_block_keeps_waits_on_the_host_from_being_saved_to_its_use(trace: Trace) -> None:
    plain, step = trace("blocks"), trace("blocks", (Region(0, 0, "offload"),))
    moved = [tensor for tensor in step.tensors if tensor.kind is TensorKind.ON_HOST]
    assert {tensor.block for tensor in moved} == {"blocks.0"}
    assert sum(tensor.num_bytes for tensor in moved) == BLOCK_BYTES
    for tensor in moved:
        assert tensor.birth_s is not None
        assert tensor.last_use_s is not None
        assert tensor.birth_s <= tensor.savers[0].saved_s < tensor.last_use_s
        assert all(saver.node is not None for saver in tensor.savers)
    by_unit = {(g.block, g.unit): (g.on_host_bytes, g.kept_bytes) for g in step.groups}
    plainly = {(g.block, g.unit): g.kept_bytes for g in plain.groups}
    for unit in ("attention", "mlp"):
        assert by_unit["blocks.0", unit] == (plainly["blocks.0", unit], 0)
        assert by_unit["blocks.1", unit] == (0, plainly["blocks.1", unit])
    # On a CPU the host is the device, so the copies are part of what forward makes.
    added = sum(g.kept_bytes + g.on_host_bytes for g in step.groups) + step.held_bytes
    assert step.start_bytes is not None
    assert step.start_bytes + added == step.backward_start_bytes


def test_a_segment_keeps_the_input_of_its_first_block(trace: Trace) -> None:
    step = trace("blocks", "segment")
    inputs = [t for t in step.tensors if t.savers and t.savers[0].operator == "region input"]
    assert [(tensor.block, tensor.num_bytes) for tensor in inputs] == [("blocks.0", 128)]
    assert [span.region for span in step.phases if span.phase == "recompute"] == ["blocks.0 to blocks.1"]


def test_groups_add_up_to_what_forward_makes(trace: Trace) -> None:
    step = trace("blocks")
    by_unit = {(group.block, group.unit): group.kept_bytes for group in step.groups}
    outside = by_unit.pop((None, None))
    assert sum(by_unit.values()) == 2 * BLOCK_BYTES
    assert outside == 128  # what the squares keep; the mean keeps nothing
    assert step.start_bytes is not None
    assert step.start_bytes + 2 * BLOCK_BYTES + outside + step.held_bytes == step.backward_start_bytes
    assert (step.num_held, step.held_bytes) == (1, 4)  # the loss


def test_groups_of_a_policy_tell_what_is_alive_when_the_block_s_backward_starts(trace: Trace) -> None:
    step = trace("blocks", "block")
    figures = {(g.block, g.unit): (g.kept_bytes, g.at_own_backward_bytes, g.recomputed_bytes) for g in step.groups}
    mlp, attention = (sum(size for unit, size, _ in KEPT_BY_A_BLOCK if unit == name) for name in ("mlp", "attention"))
    rest = BLOCK_BYTES - mlp - attention
    for block in ("blocks.0", "blocks.1"):
        assert figures[block, None] == (128, 128, rest - 128)
        assert figures[block, "attention"] == (0, 0, attention)
        assert figures[block, "mlp"] == (0, 0, mlp)


def independently_saved_bytes(model: WorkloadSpec) -> int:
    """Bytes that one forward saves, parameters and inputs apart, counted by hooks of torch's own."""
    session = WorkerSession(model, global_batch_size=4)
    rig = Rig(session.workload, model, session.device)
    batch = session.workload.make_batch(4)
    before = {t.untyped_storage().data_ptr() for t in [*rig.model.parameters(), *rig.model.buffers(), *batch.values()]}
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage
        return tensor.detach()

    with saved_tensors_hooks(pack, lambda packed: packed):
        rig.step.forward(batch)
    return sum(storage.nbytes() for address, storage in saved.items() if address not in before)


@pytest.mark.parametrize("name", ["blocks", "in_place", "squares", "sparse", "gpt"])
def test_kept_bytes_are_what_torch_s_own_hooks_count(model: MakeModel, trace: Trace, name: str) -> None:
    kept_bytes = sum(group.kept_bytes for group in trace(name).groups)
    assert kept_bytes == independently_saved_bytes(model(name).workload())


@pytest.mark.parametrize("regions", ["none", "block", "mlp", "segment"])
@pytest.mark.parametrize(
    ("name", "options"),
    [("blocks", {}), ("in_place", {}), ("squares", {}), ("sparse", {}), ("gpt", {}), ("gpt", BF16)],
    ids=["blocks", "in place", "own function", "sparse gradients", "gpt", "bfloat16"],
)
def test_the_curve_s_maximum_is_the_peak_that_the_device_measures(
    model: MakeModel, trace: Trace, name: str, options: dict[str, Any], regions: str
) -> None:
    step = trace(name, regions, **options)
    session = WorkerSession(model(name, **options).workload(), global_batch_size=4)
    live_bytes = session.settle()
    micro_batches = session.batches(step.policy)
    rig = Rig(session.workload, session.spec, session.device, step.policy)
    peak = session.device.measure_peak(RigStep(rig, micro_batches), live_bytes_before_trial=live_bytes)
    assert step.curve is not None
    assert max(step.curve.allocated_bytes) == step.peak_memory_bytes == peak.allocated_bytes


def test_parameters_and_inputs_are_told_apart_and_not_counted(trace: Trace) -> None:
    step = trace("blocks")
    by_kind = {kind: [t for t in step.tensors if t.kind is kind] for kind in TensorKind}
    names = {saver.module.rpartition(".")[2] for t in by_kind[TensorKind.PARAMETER] for saver in t.savers}
    assert names == {"norm_1", "norm_2", "q", "k", "v", "up", "down"}
    assert [t.savers[0].module for t in by_kind[TensorKind.INPUT]] == ["embedding"]
    assert {(t.birth_s, t.made_by, t.freed_s) for t in by_kind[TensorKind.PARAMETER]} == {(None, None, None)}
    assert by_kind[TensorKind.BUFFER] == by_kind[TensorKind.EXISTING] == []


def test_an_edit_in_place_is_one_storage_with_both_its_savers(trace: Trace) -> None:
    wide = [t for t in activations(trace("in_place"), "blocks.0") if t.num_bytes == 4 * 16 * 4]
    assert [described(tensor)[2] for tensor in wide] == [
        [("mlp.1", "aten::relu_", "ReluBackward0"), ("mlp.2", "aten::addmm", "AddmmBackward0")]
    ]


def test_a_function_of_one_s_own_saves_under_its_name_and_holds_its_attributes(trace: Trace) -> None:
    step = trace("squares")
    tensors = activations(step, "blocks.1")
    assert [("blocks.1", "Square", "SquareBackward")] in [
        [(saver.module, saver.operator, saver.node) for saver in tensor.savers] for tensor in tensors
    ]
    held = [t for t in step.tensors if t.kind is TensorKind.HELD and t.block is not None]
    assert [(t.block, t.num_bytes, t.savers, t.last_use_s) for t in held] == [
        (f"blocks.{index}", 128, (), None) for index in (0, 1)
    ]
    assert step.held_bytes == 2 * 128 + 4


def test_only_the_first_blocks_are_told_one_by_one_and_all_are_summed_up(trace: Trace) -> None:
    step = trace("blocks", num_blocks=1)
    assert {tensor.block for tensor in step.tensors} == {None, "blocks.0"}
    assert {group.block for group in step.groups} == {None, "blocks.0", "blocks.1"}


def test_a_further_policy_that_does_not_fit_costs_the_others_nothing(ask: Callable[..., StepTimeline]) -> None:
    recomputed, plain, again = ask("refusing", (Region(0, 0, "block"),), "none", (Region(0, 0, "block"),)).steps
    assert (plain.failure, plain.peak_memory_bytes) == ("it does not fit the device's memory", None)
    assert recomputed.failure is again.failure is None
    assert recomputed.peak_memory_bytes == again.peak_memory_bytes


def test_what_a_model_raises_is_raised_and_leaves_torch_as_it_was(ask: Callable[..., StepTimeline]) -> None:
    enter = saved_tensors_hooks.__enter__
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        ask("refusing", "none")
    assert saved_tensors_hooks.__enter__ is enter


def test_both_step_times_are_measured(trace: Trace) -> None:
    step = trace("blocks", "block")
    assert step.step_time_s is not None
    assert step.traced_step_time_s is not None
    assert step.step_time_s > 0
    assert [span.phase for span in step.phases] == ["forward", "backward", "recompute", "recompute", "optimizer"]
    assert step.phases[-1].end_s <= step.traced_step_time_s
