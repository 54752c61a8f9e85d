"""Exports to Megatron-LM, MindSpeed and Primus, judged by their rules and read back, for placements of any kind."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import yaml
from exported_studies import NUM_BLOCKS, UNITS, context, measured, policy, record, study_of
from hypothesis import given, settings
from hypothesis import strategies as st
from megatron_rules import arguments_of_array, matched, regions, why_refused

from search_spaces.model_shape import BlockList
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from tuner.export.check import check
from tuner.export.export_trial import export_trial
from tuner.export.forms import layout_of
from tuner.export.registry import EXPORTERS

IN_MEGATRON_MODE = [
    ("megatron", "0.16"),
    ("megatron", "0.20"),
    ("megatron", "0.16-yaml"),
    ("megatron", "0.20-yaml"),
    ("megatron", "bridge"),
    ("mindspeed", "megatron"),
    ("primus", "megatron"),
]
FSDP2 = ["llm-fsdp2", "mm-fsdp2", "mm-fsdp2-units"]
CLAMPS_LAST = ("0.20", "0.20-yaml", "bridge")


def exported(target: str, version: str, wanted: RecomputePolicy) -> str:
    exporter = EXPORTERS[target]
    study = study_of(measured(0, wanted))
    return export_trial(exporter, study, record(study), context(exporter, version))


def arguments(target: str, version: str, wanted: RecomputePolicy) -> dict[str, Any]:
    text = exported(target, version, wanted)
    if version in ("0.16", "0.20") or target == "mindspeed":
        return arguments_of_array(text)
    data = yaml.safe_load(text)
    if target == "primus":
        data = data["modules"]["pre_trainer"]["overrides"]
    return {**data["train"], **data["model"]} if version == "bridge" else dict(data)


@st.composite
def policies(draw: st.DrawFn) -> RecomputePolicy:
    """Placements of every form that stacks know, and any others."""
    cuts = sorted(draw(st.sets(st.integers(1, NUM_BLOCKS - 1), max_size=3)))
    starts, ends = [0, *cuts], [*(cut - 1 for cut in cuts), NUM_BLOCKS - 1]
    actions = st.sampled_from(["none", "block", "mlp", "attention", "attention+mlp", "segment"])
    placed = []
    for first, last in zip(starts, ends, strict=True):
        action = draw(actions)
        size = draw(st.integers(1, last - first + 1)) if action == "segment" else None
        if action != "none":
            placed.append(Region(first, last, action, size))
    placement = BlockListPlacement("transformer.h", NUM_BLOCKS, UNITS, tuple(placed))
    return RecomputePolicy(BatchShape.split(global_batch_size=8, micro_batch_size=2), (placement,)).canonical()


@pytest.mark.parametrize("target, version", IN_MEGATRON_MODE)
@given(wanted=policies())
@settings(max_examples=25, deadline=None)
def test_what_is_exported_runs_and_places_what_was_measured(target: str, version: str, wanted: RecomputePolicy) -> None:
    exporter = EXPORTERS[target]
    of = context(exporter, version)
    if check(exporter, wanted, of) is not None:
        return
    given_arguments = arguments(target, version, wanted)
    if given_arguments.get("recompute_layer_ids") is None:
        refused = why_refused(given_arguments, NUM_BLOCKS, clamps_last=version in CLAMPS_LAST)
        assert refused is None, refused
    else:
        assert given_arguments["recompute_layer_ids"]
        assert (given_arguments["recompute_granularity"], given_arguments["recompute_method"]) == ("full", None)
    assert (given_arguments["micro_batch_size"], given_arguments["global_batch_size"]) == (2, 8)
    assert regions(given_arguments, NUM_BLOCKS) == list(layout_of(wanted, of.block_lists)[0])


@pytest.mark.parametrize("version", FSDP2)
@given(wanted=policies())
@settings(max_examples=25, deadline=None)
def test_patterns_match_each_recomputed_module_once_and_no_other(version: str, wanted: RecomputePolicy) -> None:
    exporter = EXPORTERS["mindspeed"]
    of = context(exporter, version)
    if check(exporter, wanted, of) is not None:
        return
    data = yaml.safe_load(exported("mindspeed", version, wanted))
    if version == "llm-fsdp2":
        switch, patterns = data["parallel"]["recompute"], data["parallel"]["recompute_modules"]
        batch = data["training"]["per_device_train_batch_size"]
    else:
        plan = data["features"]["recompute_plan"]
        switch, patterns, batch = (
            data["features"]["recompute"],
            plan["apply_modules"],
            data["training"]["micro_batch_size"],
        )
        assert plan["use_reentrant"] is False
    assert (batch, data["training"]["gradient_accumulation_steps"]) == (2, 4)
    assert switch is wanted.recomputes
    layers = [f"transformer.h.{index}" for index in range(NUM_BLOCKS)]
    inside = [f"{layer}.{path}" for layer in layers for path in ("attn", "mlp", "mlp.c_fc", "ln_1")]
    paths = dict(UNITS)
    recomputed = [
        layers[index] if action == "block" else f"{layers[index]}.{paths[unit]}"
        for index, (action, _, _) in enumerate(layout_of(wanted, of.block_lists)[0])
        if action != "none"
        for unit in action.split("+")
    ]
    assert sorted(matched(patterns, [*layers, *inside])) == sorted(recomputed)


@pytest.mark.parametrize(
    "mix",
    [
        {"recompute_granularity": "full"},
        {"recompute_granularity": "full", "recompute_method": "uniform"},
        {"recompute_granularity": "full", "recompute_num_layers": 1},
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 5},
        {"recompute_granularity": "selective", "recompute_modules": ["mlp"], "recompute_num_layers": 1},
        {"recompute_granularity": "selective", "recompute_modules": ["mlp"], "recompute_method": "block"},
        {"recompute_granularity": "selective", "recompute_modules": ["attention"]},
        {"recompute_method": "block", "recompute_num_layers": 3},
    ],
    ids=str,
)
def test_the_rules_refuse_the_mixes_that_stop_a_run(mix: dict[str, Any]) -> None:
    assert why_refused(mix, NUM_BLOCKS) is not None


@pytest.mark.parametrize("target, version", [("megatron", "0.16"), ("mindspeed", "megatron"), ("primus", "megatron")])
def test_mlp_of_mixtures_of_experts_is_refused(target: str, version: str) -> None:
    exporter = EXPORTERS[target]
    of = context(exporter, version)
    experts = replace(of, block_lists=(BlockList("transformer.h", "MixtralDecoderLayer", NUM_BLOCKS, UNITS),))
    assert check(exporter, policy("mlp"), of) is None
    refusal = check(exporter, policy("mlp"), experts)
    assert refusal is not None
    assert refusal.what == "transformer.h: block 0 recomputes mlp"


def test_segments_that_do_not_divide_the_layers_need_a_newer_core() -> None:
    placement = BlockListPlacement("transformer.h", NUM_BLOCKS, UNITS, (Region(0, NUM_BLOCKS - 1, "segment", 5),))
    wanted = RecomputePolicy(BatchShape.split(global_batch_size=8, micro_batch_size=2), (placement,)).canonical()
    exporter = EXPORTERS["megatron"]
    refusal = check(exporter, wanted, context(exporter, "0.16"))
    assert refusal is not None
    assert "segments of k blocks throughout, k a divisor of their number" in refusal.accepts
    assert arguments("megatron", "0.20", wanted)["recompute_num_layers"] == 5


def test_a_unit_that_is_a_method_has_no_name_to_match() -> None:
    exporter = EXPORTERS["mindspeed"]
    of = context(exporter, "llm-fsdp2")
    units = (("attention", "attn"), ("mlp", "feed_forward()"))
    methods = replace(of, block_lists=(BlockList("transformer.h", "Block", NUM_BLOCKS, units),))
    refusal = check(exporter, policy("mix"), methods)
    assert refusal is not None
    assert refusal.what == "transformer.h: block 4 recomputes mlp"
    assert "units that are modules" in refusal.accepts


@pytest.mark.parametrize("target, version", IN_MEGATRON_MODE)
def test_rng_state_is_always_kept(target: str, version: str) -> None:
    exporter = EXPORTERS[target]
    refusal = check(exporter, policy("block", preserve_rng_state=False), context(exporter, version))
    assert refusal is not None
    assert (refusal.what, refusal.accepts.partition(":")[0]) == ("preserve_rng_state is false", "true only")


#: The checks that a config of megatron-core makes by itself.
PROGRAM = """
import json, sys, warnings
warnings.simplefilter("ignore")
from megatron.core.transformer.transformer_config import TransformerConfig
arguments = {k: v for k, v in json.loads(sys.argv[1]).items() if k.startswith(("recompute", "distribute"))}
config = TransformerConfig(num_layers=12, hidden_size=8, num_attention_heads=2, **arguments)
print(json.dumps([config.recompute_granularity, config.recompute_method, config.recompute_num_layers]))
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed")
@pytest.mark.parametrize(
    "column, taken",
    [
        ("none", [None, None, None]),
        ("block", ["full", "uniform", 1]),
        ("block<n", ["full", "block", 5]),
        ("segment", ["full", "uniform", 3]),
        ("mlp", ["selective", None, None]),
    ],
)
def test_the_config_of_megatron_core_takes_it(column: str, taken: list[object]) -> None:
    wanted = arguments("megatron", "0.16-yaml", policy(column))
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(wanted)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == taken
