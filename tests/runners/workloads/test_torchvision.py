from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from runners.base import WorkloadError
from runners.inspect_model import inspect_model
from runners.trial import WorkloadSpec
from runners.workloads.base import Workload
from runners.workloads.load import load_workload

is_installed = importlib.util.find_spec("torchvision") is not None
needs_torchvision = pytest.mark.skipif(
    not is_installed, reason='needs torchvision: pip install "recompute-tuner[torchvision]"'
)


def load(name: str, **args: Any) -> Workload:
    return load_workload(WorkloadSpec(model_factory=f"torchvision:{name}", model_args=args))


@needs_torchvision
@pytest.mark.parametrize(
    "name, args, paths",
    [
        ("resnet18", {}, ["layer1", "layer2", "layer3", "layer4"]),
        ("swin_t", {}, ["features.1", "features.3", "features.5", "features.7"]),
        ("convnext_tiny", {}, ["features.1", "features.3", "features.5", "features.7"]),
        ("vit_b_16", {"image_size": 32}, ["encoder.layers"]),
    ],
)
def test_a_classifier_trains_and_its_blocks_are_found(name: str, args: dict[str, Any], paths: list[str]) -> None:
    workload = load(name, num_classes=7, **args)
    model, batch = workload.build_model(), workload.make_batch(2)
    assert int(batch["labels"].max()) < 7
    workload.loss_of(model(**batch)).backward()
    found = inspect_model(model, run_step=lambda: model(**batch)).shape
    assert [blocks.path for blocks in found.block_lists] == paths


@needs_torchvision
def test_images_have_the_size_the_model_is_trained_on_or_was_asked_for() -> None:
    inception, small = load("inception_v3", init_weights=False), load("vit_b_16", image_size=64)
    inception.build_model()
    small.build_model()
    assert inception.make_batch(1)["images"].shape == (1, 3, 299, 299)
    assert small.make_batch(2)["images"].shape == (2, 3, 64, 64)
    assert small.tokens_per_sample is None


@needs_torchvision
def test_auxiliary_heads_add_their_loss() -> None:
    workload = load("googlenet", init_weights=False, num_classes=4)
    model, batch = workload.build_model(), workload.make_batch(2)
    loss = workload.loss_of(model(**batch))
    assert loss.item() > 2 * torch.log(torch.tensor(4.0)).item()


@needs_torchvision
@pytest.mark.parametrize(
    "name, args, message",
    [
        ("resnet19", {}, r"torchvision:resnet19, which is no image classifier .+did you mean .*resnet"),
        ("fcn_resnet50", {}, r"torchvision:fcn_resnet50, which is no image classifier"),
        ("resnet18", {"widht": 3}, r"with these model.args failed: TypeError: .+widht"),
    ],
)
def test_wrong_names_and_arguments_are_refused(name: str, args: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        load(name, **args).build_model()


@pytest.mark.skipif(is_installed, reason="torchvision is installed here")
def test_without_torchvision_the_extra_to_install_is_named() -> None:
    message = r'torchvision:resnet18, which needs torchvision: .+pip install "recompute-tuner\[torchvision\]"'
    with pytest.raises(WorkloadError, match=message):
        load("resnet18")
