from __future__ import annotations

from typing import Any

import pytest
import torch

from runners.base import WorkloadError
from runners.devices.cpu import CpuDevice
from runners.rig import Rig, build_optimizer
from runners.trial import WorkloadSpec
from runners.workloads.load import load_workload

Trials = Any


def make_rig(maker: Any, **placed: Any) -> Rig:
    spec = maker.workload()
    return Rig(load_workload(spec), spec, CpuDevice(), **placed)


class TestBuildOptimizer:
    @pytest.mark.parametrize("name", ["adamw", "AdamW", "ADAMW"])
    def test_name_is_found_in_any_case(self, name: str) -> None:
        optimizer = build_optimizer(torch.nn.Linear(2, 2), WorkloadSpec(model_factory="x:y", optimizer_name=name))
        assert type(optimizer) is torch.optim.AdamW

    def test_unknown_name_lists_the_known_ones(self) -> None:
        spec = WorkloadSpec(model_factory="x:y", optimizer_name="adamx")
        with pytest.raises(WorkloadError, match=r"optimizer\.name is 'adamx'.*known are .*adafactor, .*adamw, .*sgd"):
            build_optimizer(torch.nn.Linear(2, 2), spec)

    def test_refused_arguments_are_named(self) -> None:
        spec = WorkloadSpec(model_factory="x:y", optimizer_args={"learning_rate": 1.0})
        with pytest.raises(WorkloadError, match=r"optimizer\.args \{'learning_rate': 1.0\} are refused by AdamW: "):
            build_optimizer(torch.nn.Linear(2, 2), spec)

    def test_only_parameters_that_require_a_gradient_are_trained(self) -> None:
        model = torch.nn.Linear(2, 2)
        model.bias.requires_grad_(False)
        optimizer = build_optimizer(model, WorkloadSpec(model_factory="x:y"))
        assert optimizer.param_groups[0]["params"] == [model.weight]

    def test_model_with_nothing_to_train_is_refused(self) -> None:
        model = torch.nn.Linear(2, 2).requires_grad_(False)
        with pytest.raises(WorkloadError, match="model Linear has no parameter that requires a gradient"):
            build_optimizer(model, WorkloadSpec(model_factory="x:y"))


class TestRig:
    def test_placed_policy_gives_way_to_the_one_before(self, trials: Trials) -> None:
        maker = trials("stack.py:plain", num_blocks=3)
        rig = make_rig(maker, policy=maker.policy("mlp", micro=8))
        with rig.placed(maker.policy("block", micro=8)):
            assert "forward" in vars(rig.model.blocks[0])
            with rig.placed(None):
                assert "forward" not in vars(rig.model.blocks[0])
                assert "forward" not in vars(rig.model.blocks[0].mlp)
        assert "forward" not in vars(rig.model.blocks[0])
        assert "forward" in vars(rig.model.blocks[0].mlp)

    def test_tied_and_viewed_storages_are_counted_once(self, trials: Trials) -> None:
        rig = make_rig(trials("operators.py:tied_words"))
        unique = {p.data_ptr(): p.numel() for p in rig.model.parameters()}
        assert rig.static_bytes() == {"parameters": 4 * sum(unique.values()), "buffers": 0, "optimizer_states": 0}

    def test_gradient_storages_are_those_of_dense_and_sparse_gradients(self, trials: Trials) -> None:
        maker = trials("operators.py:words", args={"sparse": True})
        maker.options = {"optimizer_name": "sgd", "optimizer_args": {"lr": 0.1}}
        rig = make_rig(maker)
        rig.step.accumulate([load_workload(maker.workload()).make_batch(2)])
        sizes = sorted(rig.gradient_storages().values())
        dense = [4 * p.numel() for p in rig.model.parameters() if p is not rig.model.embedding.weight]
        num_tokens = 2 * 5
        sparse = [num_tokens * 8, num_tokens * 8 * 4]
        assert sizes == sorted([*dense, *sparse])
