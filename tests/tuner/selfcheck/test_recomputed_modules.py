from __future__ import annotations

import pytest
import torch
from torch import nn

from runners.apply_policy import apply_policy
from runners.workloads.gpt import gpt
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from tuner.selfcheck.recomputed_modules import leaf_names, recomputed_modules

UNITS = (("attention", "attn"), ("mlp", "mlp"))
BATCH = BatchShape.split(global_batch_size=2, micro_batch_size=2)


def found(*regions: Region) -> set[str]:
    model = gpt(n_layer=2, n_embd=16, n_head=2, vocab_size=16)
    path = next(name for name, module in model.named_modules() if isinstance(module, nn.ModuleList))
    units = tuple((name, unit) for name, unit in UNITS if hasattr(model.get_submodule(f"{path}.0"), unit))
    assert units == UNITS
    leaves = leaf_names(model)
    apply_policy(model, RecomputePolicy(BATCH, (BlockListPlacement(path, 2, UNITS, regions),)))
    torch.manual_seed(0)
    batch = model.example_batch(2, 8)
    return {name.removeprefix(f"{path}.") for name in recomputed_modules(leaves, lambda: model(**batch))}


def test_without_recompute_nothing_runs_again() -> None:
    assert found() == set()


def test_a_unit_runs_again_without_the_rest_of_its_block() -> None:
    names = found(Region(1, 1, "mlp"))
    assert names
    assert all(name.startswith("1.mlp.") for name in names)


def test_a_whole_block_runs_again_with_its_norms() -> None:
    names = found(Region(0, 0, "block"))
    assert {name.split(".")[0] for name in names} == {"0"}
    assert names > found(Region(0, 0, "attention")) | set()
    assert any("attn" not in name and "mlp" not in name for name in names)


def test_what_breaks_off_leaves_no_hook() -> None:
    module = nn.Sequential(nn.Linear(2, 2))

    def fail() -> torch.Tensor:
        raise RuntimeError("no forward")

    with pytest.raises(RuntimeError, match="no forward"):
        recomputed_modules(leaf_names(module), fail)
    assert not module[0]._forward_pre_hooks
