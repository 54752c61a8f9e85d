"""Exports of units inside modules and of kept operators: by the stacks that have them, refused by all others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from exported_studies import NUM_BLOCKS, UNITS, context

from search_spaces.actions import OFFLOAD, selective_action
from search_spaces.model_shape import BlockList
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from tuner.export.base import ExportContext, Exporter
from tuner.export.check import check
from tuner.export.registry import EXPORTERS

LAST = NUM_BLOCKS - 1
INNER = (*UNITS, ("activation", "mlp..mlp.c_proj"), ("norm", "ln_1..attn.c_attn; ln_2..mlp.c_fc"))
MATMULS = selective_action(["aten.mm.default", "aten.addmm.default"])
SOME_CALLS = selective_action(["aten.addmm.default[0]"])


def policy(*regions: Region) -> RecomputePolicy:
    placement = BlockListPlacement("transformer.h", NUM_BLOCKS, INNER, regions)
    return RecomputePolicy(BatchShape.split(global_batch_size=8, micro_batch_size=2), (placement,)).canonical()


def everywhere(action: str) -> RecomputePolicy:
    return policy(Region(0, LAST, action))


def inner_context(exporter: Exporter, version: str, *, through_python: bool = False) -> ExportContext:
    of = context(exporter, version, through_python=through_python)
    return replace(of, block_lists=(BlockList("transformer.h", "GPT2Block", NUM_BLOCKS, INNER),))


def settings(target: str, version: str, wanted: RecomputePolicy) -> Any:
    exporter = EXPORTERS[target]
    of = inner_context(exporter, version)
    assert check(exporter, wanted, of) is None
    return exporter.settings(wanted, of)  # type: ignore[attr-defined]


def test_megatron_recomputes_norms_by_its_module() -> None:
    said = settings("megatron", "0.20", everywhere("norm"))
    assert (said["recompute_granularity"], said["recompute_modules"]) == ("selective", ["layernorm"])
    assert (said["recompute_method"], said["recompute_num_layers"]) == (None, None)


def test_megatrons_module_is_both_norms_and_nothing_less() -> None:
    exporter = EXPORTERS["megatron"]
    one_norm = (*UNITS, ("norm", "ln_2..mlp.c_fc"))
    of = replace(
        inner_context(exporter, "0.20"), block_lists=(BlockList("transformer.h", "Block", NUM_BLOCKS, one_norm),)
    )
    placement = BlockListPlacement("transformer.h", NUM_BLOCKS, one_norm, (Region(0, LAST, "norm"),))
    refusal = check(exporter, RecomputePolicy(BatchShape(2, 4, 1, 8), (placement,)).canonical(), of)
    assert refusal is not None
    assert refusal.what == "transformer.h: block 0 recomputes norm"


@pytest.mark.parametrize(
    ("regions", "said"),
    [
        ([Region(0, LAST, "activation")], (None, None, None, NUM_BLOCKS)),
        ([Region(0, 3, "block"), Region(4, 9, "activation")], ("full", "block", 4, 6)),
    ],
)
def test_mindspeed_recomputes_whole_layers_and_then_activation_functions(regions: list[Region], said: Any) -> None:
    found = settings("mindspeed", "megatron", policy(*regions))
    assert found["recompute_activation_function"] is True
    assert found["recompute_norm"] is False
    names = ("recompute_granularity", "recompute_method", "recompute_num_layers")
    assert (*(found[name] for name in names), found["recompute_activation_function_num_layers"]) == said


def test_mindspeed_switches_are_off_where_megatrons_own_arguments_say_it() -> None:
    found = settings("mindspeed", "megatron", everywhere("block"))
    assert (found["recompute_activation_function"], found["recompute_norm"]) == (False, False)
    assert found["recompute_activation_function_num_layers"] is None


def test_mindspeed_mm_replays_the_kept_operators() -> None:
    wanted = policy(Region(0, 5, MATMULS), Region(6, LAST, "block"))
    features = settings("mindspeed", "mm-fsdp2-units", wanted)["features"]
    assert features["recompute_plan"]["apply_modules"] == ["transformer.h.{0-5}", f"transformer.h.{{6-{LAST}}}"]
    (scope,) = features["recompute_plan"]["op_replay_scopes"]
    assert scope["apply_modules"] == ["transformer.h.{0-5}"]
    assert scope["cache_ops"] == ["aten.addmm.default", "aten.mm.default"]
    assert features["swap_plan"]["capacity_mb"] < 0


def test_axolotl_saves_the_kept_operators_by_their_qualified_names() -> None:
    said = settings("axolotl", "0.19", everywhere(MATMULS))
    assert said["gradient_checkpointing"] is True
    assert said["selective_checkpointing"] == {"save": ["aten::addmm", "aten::mm"]}
    assert yaml.safe_load(yaml.safe_dump(said)) == said


@pytest.mark.parametrize("target, version", [("axolotl", "0.19"), ("mindspeed", "mm-fsdp2-units")])
def test_single_calls_cannot_be_told_by_an_operators_name(target: str, version: str) -> None:
    exporter = EXPORTERS[target]
    refusal = check(exporter, everywhere(SOME_CALLS), inner_context(exporter, version))
    assert refusal is not None
    assert refusal.what == ("transformer.h: block 0 is recomputed but for what aten.addmm.default[0] give")


def test_axolotl_has_one_list_of_operators_for_all_layers() -> None:
    exporter = EXPORTERS["axolotl"]
    other = selective_action(["aten.bmm.default"])
    refusal = check(exporter, policy(Region(0, 5, MATMULS), Region(6, LAST, other)), inner_context(exporter, "0.19"))
    assert refusal is not None
    assert refusal.what == "blocks keep the outputs of different operators"
    some = check(exporter, policy(Region(0, 5, MATMULS)), inner_context(exporter, "0.19"))
    assert some is not None
    assert some.what == "transformer.h: block 6 keeps everything"


@pytest.mark.parametrize(
    "action",
    ["activation", "norm", "activation+norm", MATMULS, OFFLOAD],
    ids=["a", "n", "an", "selective", "offload"],
)
def test_our_integrations_say_everything(action: str) -> None:
    for target in ("huggingface", "torchtitan", "lightning", "accelerate"):
        exporter = EXPORTERS[target]
        of = inner_context(exporter, exporter.versions[-1].name, through_python=True)
        assert check(exporter, everywhere(action), of) is None, target


@pytest.mark.parametrize(
    "action", ["activation", "activation+norm", MATMULS, OFFLOAD], ids=["a", "an", "selective", "offload"]
)
def test_stacks_without_a_way_to_say_it_refuse(action: str) -> None:
    sayers = {
        "axolotl": [MATMULS],
        "mindspeed": ["activation", MATMULS],
        "policy": ["activation", "activation+norm", MATMULS, OFFLOAD],
    }
    for target, exporter in EXPORTERS.items():
        for version in exporter.versions:
            refusal = check(exporter, everywhere(action), inner_context(exporter, version.name))
            assert refusal is not None or action in sayers.get(target, []), (target, version.name)


def test_offloaded_blocks_are_not_said_to_recompute_anything() -> None:
    exporter = EXPORTERS["megatron"]
    refusal = check(exporter, everywhere(OFFLOAD), inner_context(exporter, exporter.versions[0].name))
    assert refusal is not None
    assert refusal.what == "transformer.h: block 0 waits on the host"
