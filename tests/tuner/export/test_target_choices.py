from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from click.testing import Result
from simulation import ENVIRONMENT, MATCH, MIB, replay

from runners.trial import ModelInspection, TrialResult, TrialSpec, TrialStatus
from search_spaces.choices import SearchChoices
from search_spaces.listed_space import ListedSpace
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from search_spaces.registry import make_space
from tuner.config import Target
from tuner.export.base import Exporter
from tuner.export.check import check
from tuner.export.context import context_of_shape
from tuner.export.registry import EXPORTERS
from tuner.export.target_choices import choices_within
from tuner.results_file import read_results
from tuner.search_file.names import RNG_OF_TARGET

NUM_BLOCKS = 6
UNITS = (("attention", "attn"), ("mlp", "mlp"))
SHAPE = ModelShape(1000, (BlockList("transformer.h", "GPT2Block", NUM_BLOCKS, UNITS),))
TWO_LISTS = ModelShape(1000, (BlockList("encoder", "Layer", 3, UNITS), BlockList("decoder", "Layer", 3, UNITS)))
INSPECTION = ModelInspection(
    shape=SHAPE, model_class="GPT2", tokens_per_sample=16, device_memory_bytes=10**9, environment=ENVIRONMENT
)
ACTIONS = ("none", "attention", "mlp", "attention+mlp", "block", "segment")


def choices(shape: ModelShape = SHAPE, **changes: object) -> SearchChoices:
    arguments = {"shape": shape, "global_batch_size": 4, "micro_batch_sizes": (1, 2, 4), "actions": ACTIONS}
    return SearchChoices(**{**arguments, **changes})  # type: ignore[arg-type]  # as a table


def says(exporter: Exporter, policy: RecomputePolicy, shape: ModelShape = SHAPE) -> bool:
    return check(exporter, policy, context_of_shape(shape, exporter.versions[0])) is None


def test_every_target_is_a_format_and_every_format_a_target() -> None:
    assert set(get_args(Target)) == set(EXPORTERS)


@pytest.mark.parametrize("target", EXPORTERS)
def test_the_default_handling_of_random_numbers_is_the_one_that_the_target_has(target: str) -> None:
    batch = BatchShape.split(global_batch_size=4, micro_batch_size=2)
    kinds = [Region(0, 5, "block"), Region(0, 5, "mlp"), Region(0, 5, "attention"), Region(0, 5, "segment", 2)]
    said = {
        preserve
        for preserve in (True, False)
        for region in kinds
        if says(
            EXPORTERS[target],
            RecomputePolicy(batch, (BlockListPlacement("transformer.h", 6, UNITS, (region,)),), preserve),
        )
    }
    expected = {RNG_OF_TARGET[target]} if target in RNG_OF_TARGET else {True, False}
    assert said in (expected, set())


@pytest.mark.parametrize("shape", [SHAPE, TWO_LISTS], ids=["one list", "two lists"])
@pytest.mark.parametrize("preserve", [True, False, "search"], ids=str)
@pytest.mark.parametrize("target", EXPORTERS)
def test_whatever_the_search_may_try_can_be_said(target: str, preserve: object, shape: ModelShape) -> None:
    restricted = choices_within(choices(shape, preserve_rng_state=preserve), EXPORTERS[target])
    policies = list(make_space("two_action", restricted).policies())
    assert policies
    assert any(not policy.recomputes for policy in policies)
    assert all(says(EXPORTERS[target], policy, shape) for policy in policies)


@pytest.mark.parametrize("target", EXPORTERS)
def test_nothing_that_can_be_said_is_left_out(target: str) -> None:
    """Of what a free search tries, with the RNG handling that the target has."""
    preserve = RNG_OF_TARGET.get(target, True)
    free = choices(preserve_rng_state=preserve)
    sayable = {p.key for p in make_space("two_action", free).policies() if says(EXPORTERS[target], p)}
    tried = {p.key for p in make_space("two_action", choices_within(free, EXPORTERS[target])).policies()}
    assert sayable <= tried


def test_a_stack_that_recomputes_every_kth_layer_is_searched_for_that_too() -> None:
    restricted = choices_within(choices(), EXPORTERS["huggingface"])
    space = make_space("two_action", restricted)
    assert isinstance(space, ListedSpace)
    summaries = {policy.summary() for policy in space.policies() if policy.batch.micro_batch_size == 4}
    assert summaries == {
        "none @4x1",
        "block @4x1",
        "block[0] block[2] block[4] @4x1",
        "block[0] block[3] @4x1",
        "block[0] block[4] @4x1",
        "block[0] block[5] @4x1",
        "block[0] @4x1",
    }
    for policy in space.policies():
        assert space.decode(space.encode(policy)) == policy


def test_only_what_the_user_allows_is_listed() -> None:
    restricted = choices_within(choices(actions=("none", "mlp")), EXPORTERS["lightning"])
    assert {p.summary() for p in make_space("two_action", restricted).policies()} == {
        f"{action} @{size}x{4 // size}" for action in ("none", "mlp") for size in (1, 2, 4)
    }


def test_positions_of_one_module_are_not_told_apart() -> None:
    shape = ModelShape(1000, (BlockList("h", "Block", 4, UNITS, aliases=((0, 1),)),))
    restricted = choices_within(choices(shape), EXPORTERS["huggingface"])
    summaries = {p.summary() for p in make_space("two_action", restricted).policies()}
    assert not [summary for summary in summaries if "[" in summary]


@pytest.mark.parametrize(
    "policy, message",
    [
        (Region(0, 1, "block"), r"placement block\[0-1\] @4x1 is none of the 7 placements that this search tries"),
        (None, "placement: other is no list of this model; place exactly transformer.h"),
    ],
)
def test_a_policy_that_is_not_listed_has_no_values(policy: Region | None, message: str) -> None:
    space = make_space("two_action", choices_within(choices(), EXPORTERS["huggingface"]))
    batch = BatchShape.split(global_batch_size=4, micro_batch_size=4)
    path = "other" if policy is None else "transformer.h"
    placement = BlockListPlacement(path, NUM_BLOCKS, UNITS, () if policy is None else (policy,))
    with pytest.raises(ValueError, match=message):
        space.encode(RecomputePolicy(batch, (placement,)))


def measure(spec: TrialSpec) -> TrialResult:
    """A device on which each recomputed block costs time and saves memory, a unit of it a part of that."""
    cost = {"none": 0.0, "attention": 0.03, "mlp": 0.04, "attention+mlp": 0.07, "block": 0.1, "segment": 0.11}
    kept = {"none": 8, "attention": 6, "mlp": 5, "attention+mlp": 3, "block": 1, "segment": 1}
    actions = [a for placement in spec.policy.placement for a in placement.actions()] or ["none"] * NUM_BLOCKS
    batch = spec.policy.batch
    time_s = 1 + sum(cost[a] for a in actions) + 1.0 * (batch.gradient_accumulation_steps - 1)
    return TrialResult(
        trial_number=spec.trial_number,
        policy=spec.policy,
        status=TrialStatus.COMPLETED,
        samples_per_second=batch.global_batch_size / time_s,
        step_time_s=time_s,
        step_time_spread_s=0.0,
        num_steps=5,
        relative_speed=1 / time_s,
        relative_speed_spread=0.0,
        reference_step_time_s=1.0,
        peak_memory_bytes=(10 + batch.micro_batch_size * sum(kept[a] for a in actions)) * MIB,
        verification=MATCH,
        device="a simulated CPU",
    )


@pytest.mark.slow
@pytest.mark.parametrize("target", EXPORTERS)
def test_the_winner_of_a_search_with_a_target_exports_exactly(
    target: str, tmp_path: Path, write_search: Callable[..., Path], tune: Callable[..., Result]
) -> None:
    file = write_search(
        batch__global_batch_size=4,
        memory_cap="110MiB",
        placement={"target": target},
        search={"num_trials": 12, "sampler": "tpe"},
    )
    result = tune("run", file, runner=replay(measure, inspection=INSPECTION))
    assert result.exit_code == 0, result.stderr
    results = read_results(tmp_path / "runs" / "simulated" / "results.json")
    assert all(says(EXPORTERS[target], trial.to_policy()) for trial in results.trials)
    for number in results.front:
        export = tune("export", "simulated", "--format", target, "--trial", number, "--output-dir", tmp_path / "runs")
        assert (export.exit_code, export.stdout != "") == (0, True), export.stderr
    if target not in ("deepspeed",):
        assert results.trials[results.best or 0].to_policy().recomputes
