from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from runners.base import WorkloadError
from runners.inspect_model import inspect_model
from runners.trial import WorkloadSpec
from runners.workloads.base import Workload
from runners.workloads.load import load_workload

is_installed = importlib.util.find_spec("timm") is not None
needs_timm = pytest.mark.skipif(not is_installed, reason='needs timm: pip install "recompute-tuner[timm]"')


def load(name: str, **args: Any) -> Workload:
    return load_workload(WorkloadSpec(model_factory=f"timm:{name}", model_args=args))


@needs_timm
@pytest.mark.parametrize(
    "name, args, paths",
    [
        ("vit_tiny_patch16_224", {"img_size": 32}, ["blocks"]),
        ("convnext_atto", {}, [f"stages.{stage}.blocks" for stage in range(4)]),
        ("resnet18", {}, ["layer1", "layer2", "layer3", "layer4"]),
    ],
)
def test_a_classifier_trains_and_its_blocks_are_found(name: str, args: dict[str, Any], paths: list[str]) -> None:
    workload = load(name, num_classes=7, **args)
    model, batch = workload.build_model(), workload.make_batch(2)
    assert int(batch["labels"].max()) < 7
    workload.loss_of(model(**batch)).backward()
    found = inspect_model(model, run_step=lambda: model(**batch)).shape
    assert [blocks.path for blocks in found.block_lists] == paths


@needs_timm
def test_vit_has_both_units() -> None:
    workload = load("vit_tiny_patch16_224", img_size=32)
    model, batch = workload.build_model(), workload.make_batch(1)
    (blocks,) = inspect_model(model, run_step=lambda: model(**batch)).shape.block_lists
    assert blocks.units == (("attention", "attn"), ("mlp", "mlp"))


@needs_timm
@pytest.mark.parametrize(
    "name, args, message",
    [
        ("resnet19", {}, r"timm:resnet19, which is no model of the installed timm; did you mean"),
        ("resnet18", {"num_classes": 0}, r"timm:resnet18, which has no classifier as built; set num_classes"),
    ],
)
def test_wrong_names_and_models_without_a_head_are_refused(name: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        load(name, **args).build_model()


@pytest.mark.skipif(is_installed, reason="timm is installed here")
def test_without_timm_the_extra_to_install_is_named() -> None:
    with pytest.raises(WorkloadError, match=r'timm:resnet18, which needs timm: .+"recompute-tuner\[timm\]"'):
        load("resnet18")
