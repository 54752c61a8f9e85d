"""torchtitan's own Llama and its own config code, on the CPU; skipped where torchtitan is not installed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from exported_studies import context, measured, policy, record, study_of
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from search_spaces.policy import BatchShape, BlockListPlacement, PolicyError, RecomputePolicy, Region
from search_spaces.policy_file import dump_policy
from tuner.export.export_trial import export_trial
from tuner.export.registry import EXPORTERS

pytest.importorskip("torchtitan.models.llama3", reason="torchtitan 0.3 is not installed")

from torchtitan.config.manager import ConfigManager
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import config_registry, model_registry

from tuner.integrations.torchtitan import MeasuredPolicy

NUM_BLOCKS = 6
UNITS = (("attention", "attention"), ("mlp", "feed_forward"))
TOKENS_BL = torch.arange(2 * 32).reshape(2, 32) % 251


def build_llama() -> nn.Module:
    config: Any = model_registry("debugmodel").model
    for layer in config.layers:
        # The attention that it takes by default wants a GPU.
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    model = config.build()
    torch.manual_seed(0)
    model.init_weights(buffer_device=torch.device("cpu"))
    return model  # type: ignore[no-any-return]  # torchtitan may be absent where types are checked


def step(model: nn.Module) -> tuple[int, dict[str, torch.Tensor]]:
    """FLOPs of a forward and backward, and the gradients."""
    with FlopCounterMode(display=False) as counter:
        model(TOKENS_BL).float().logsumexp(-1).mean().backward()
    return counter.get_total_flops(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture
def policy_file(tmp_path: Path) -> Callable[..., str]:
    def write(*regions: Region, num_blocks: int = NUM_BLOCKS) -> str:
        placement = BlockListPlacement("layers", num_blocks, UNITS, regions)
        dump_policy(RecomputePolicy(BatchShape(2, 1, 1, 2), (placement,)), tmp_path / "policy.yaml")
        return str(tmp_path / "policy.yaml")

    return write


def apply(model: nn.Module, file: str) -> None:
    MeasuredPolicy.Config(policy_file=file).build(dump_folder="").apply(model)


def test_each_block_is_recomputed_as_the_policy_says_and_gradients_stay(policy_file: Callable[..., str]) -> None:
    plain = build_llama()
    flops, gradients = step(plain)
    cost = {}
    for action in ("block", "mlp", "attention"):
        model = build_llama()
        apply(model, policy_file(Region(3, 3, action)))
        assert [name for name, _ in model.named_parameters()] == list(gradients)
        cost[action] = step(model)[0] - flops
    mixed = build_llama()
    apply(mixed, policy_file(Region(0, 1, "block"), Region(2, 3, "mlp"), Region(4, 4, "attention")))
    mixed_flops, mixed_gradients = step(mixed)
    assert all(cost.values())
    assert mixed_flops - flops == 2 * cost["block"] + 2 * cost["mlp"] + cost["attention"]
    assert all(torch.equal(gradients[name], mixed_gradients[name]) for name in gradients)


def test_its_own_policy_recomputes_blocks_to_their_end(policy_file: Callable[..., str]) -> None:
    flops, _ = step(build_llama())
    ours, theirs = build_llama(), build_llama()
    apply(ours, policy_file(Region(0, NUM_BLOCKS - 1, "block")))
    FullAC.Config().build(dump_folder="").apply(theirs)
    assert flops < step(ours)[0] < step(theirs)[0]


def test_segments_are_refused(policy_file: Callable[..., str]) -> None:
    model = build_llama()
    with pytest.raises(PolicyError, match=r"policy\.yaml: blocks 0 to 5 of layers are recomputed in segments, but"):
        apply(model, policy_file(Region(0, 5, "segment", 3)))
    assert all("forward" not in vars(module) for module in model.modules())


def test_a_part_of_the_model_is_refused(policy_file: Callable[..., str]) -> None:
    with pytest.raises(PolicyError, match=r"placement of layers is for 12 blocks, but the model has 6"):
        apply(build_llama(), policy_file(Region(0, 5, "block"), num_blocks=12))


@pytest.mark.parametrize("through_python", [False, True])
def test_its_config_code_takes_what_is_exported(monkeypatch: pytest.MonkeyPatch, through_python: bool) -> None:
    exporter = EXPORTERS["torchtitan"]
    study = study_of(measured(0, policy("block")))
    written: dict[str, Any] = {}
    exec(export_trial(exporter, study, record(study), context(exporter, "0.3", through_python=through_python)), written)
    module = ModuleType("exported_config")
    module.small = lambda: written["with_measured_policy"](config_registry.llama3_debugmodel())  # type: ignore[attr-defined]  # made here
    monkeypatch.setitem(sys.modules, "exported_config", module)
    config: Any = ConfigManager().parse_args(["--module", "exported_config", "--config", "small"])
    assert (config.training.local_batch_size, config.training.global_batch_size) == (2, 8)
    wanted = MeasuredPolicy.Config(policy_file="policy.yaml") if through_python else FullAC.Config()
    assert config.activation_checkpoint == wanted
