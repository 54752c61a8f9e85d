from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from runners.base import WorkloadError
from runners.workloads.image_classifier import give_loss, given_image_size, image_batches


class Classifier(nn.Module):
    """Returns logits, those of an auxiliary head too if asked."""

    def __init__(self, num_heads: int = 1) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(3 * 4 * 4, 5) for _ in range(num_heads))

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        logits = tuple(head(x.flatten(1)) for head in self.heads)
        return logits if len(logits) > 1 else logits[0]


MAKE_BATCH = image_batches(image_size=(4, 4), num_channels=3, num_classes=5, dtype=torch.float32)


@pytest.mark.parametrize("num_heads", [1, 2])
def test_the_loss_is_the_cross_entropy_of_every_head(num_heads: int) -> None:
    model, batch = Classifier(num_heads), MAKE_BATCH(2, None)
    expected = sum(F.cross_entropy(head(batch["images"].flatten(1)), batch["labels"]) for head in model.heads)
    torch.testing.assert_close(give_loss(model)(**batch), expected)


def test_names_and_class_stay_and_a_copy_runs_its_own_layers() -> None:
    model = Classifier()
    names = list(model.state_dict()), [name for name, _ in model.named_modules()]
    copied = copy.deepcopy(give_loss(model))
    assert (list(model.state_dict()), [name for name, _ in model.named_modules()]) == names
    assert type(model) is Classifier
    batch = MAKE_BATCH(2, None)
    before = model(**batch)
    nn.init.zeros_(copied.get_parameter("heads.0.weight"))
    nn.init.zeros_(copied.get_parameter("heads.0.bias"))
    torch.testing.assert_close(copied(**batch), torch.tensor(5.0).log())
    assert torch.equal(model(**batch), before)


def test_a_model_that_returns_no_logits_is_refused() -> None:
    class Detector(Classifier):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]  # on purpose
            return {"boxes": x}

    with pytest.raises(WorkloadError, match="returned no logits; only image classifiers are supported"):
        give_loss(Detector())(**MAKE_BATCH(1, None))


def test_the_image_size_is_read_under_the_names_models_use() -> None:
    assert given_image_size({"img_size": 32}) == (32, 32)
    assert given_image_size({"image_size": (16, 32)}) == (16, 32)
    assert given_image_size({"width": 3}) is None
