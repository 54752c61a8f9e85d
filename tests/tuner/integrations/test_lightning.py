"""Twenty steps of Lightning's Trainer on a CPU: what the study promised, and the losses of plain training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("lightning")

sys.path.append(str(Path(__file__).parent))

import torch
from fine_tuning import (
    BATCH,
    MIX,
    NUM_BLOCKS,
    NUM_STEPS,
    UNITS,
    PeakOfOneStep,
    RandomTokens,
    build_model,
    policy,
    promised_peak_bytes,
)
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import FSDPStrategy
from torch import nn
from torch.utils.data import DataLoader

from runners.trial import TrialStatus
from search_spaces.model_shape import BlockList
from search_spaces.policy import PolicyError, RecomputePolicy, Region
from search_spaces.policy_file import dump_policy
from tuner.export.base import ExportContext
from tuner.export.registry import EXPORTERS
from tuner.export.versions import choose_version
from tuner.integrations.lightning import RecomputeCallback
from tuner.results import TrialRecord

LIGHTNING = EXPORTERS["lightning"]


class Module(LightningModule):
    """A user's own module around the model that was tuned."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build_model()
        self.losses: list[float] = []

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch).loss
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


class MeasureLastStep(Callback):
    """From the first micro-batch of the last optimizer step to the end of that step."""

    def __init__(self, peak: PeakOfOneStep) -> None:
        self._peak = peak

    def on_train_batch_start(self, trainer: Trainer, pl_module: Module, batch: Any, batch_idx: int) -> None:
        if batch_idx == (NUM_STEPS - 2) * BATCH.gradient_accumulation_steps:
            self._peak.start_recording()
        if batch_idx == (NUM_STEPS - 1) * BATCH.gradient_accumulation_steps:
            self._peak.start_step()

    def on_train_batch_end(self, trainer: Trainer, pl_module: Module, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == NUM_STEPS * BATCH.gradient_accumulation_steps - 1:
            self._peak.end_step()


def export(of: RecomputePolicy, *, through_python: bool) -> dict[str, Any]:
    """What the exported Python defines."""
    blocks = BlockList("transformer.h", "GPT2Block", NUM_BLOCKS, UNITS)
    context = ExportContext(choose_version(LIGHTNING, None), (blocks,), through_python=through_python)
    record = TrialRecord.model_construct(number=0, status=TrialStatus.COMPLETED, policy=_plain_data(of))
    names: dict[str, Any] = {}
    exec(LIGHTNING.write(None, record, context), names)  # type: ignore[arg-type]  # the study is not looked at
    return names


def _plain_data(of: RecomputePolicy) -> dict[str, Any]:
    from search_spaces.policy import policy_to_dict

    return policy_to_dict(of)


def fit(folder: Path, *callbacks: Callback, **arguments: Any) -> tuple[list[float], int]:
    """Loss of each micro-batch, and the peak of the last step."""
    data = RandomTokens()
    peak = PeakOfOneStep()
    module = Module()
    trainer = Trainer(
        accelerator="cpu",
        max_steps=NUM_STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        callbacks=[*callbacks, MeasureLastStep(peak)],
        **arguments,
    )
    seed_everything(3, verbose=False)
    trainer.fit(module, DataLoader(data, batch_size=BATCH.micro_batch_size))
    return module.losses, peak.peak_bytes


@pytest.mark.slow
def test_twenty_steps_are_what_the_study_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = policy(*MIX)
    monkeypatch.chdir(tmp_path)
    dump_policy(of, "policy.yaml")
    arguments = export(of, through_python=True)["trainer_arguments"](None)
    callbacks = arguments.pop("callbacks")
    losses, peak = fit(tmp_path, *callbacks, **arguments)
    plain_losses, plain_peak = fit(tmp_path, **export(policy(), through_python=False)["trainer_arguments"](None))
    assert len(losses) == NUM_STEPS * BATCH.gradient_accumulation_steps
    assert losses == plain_losses
    assert peak == pytest.approx(promised_peak_bytes(of), rel=0.01)
    assert peak < 0.9 * plain_peak


@pytest.mark.parametrize("action", ["block", "attention", "mlp", "attention+mlp"])
def test_the_strategy_recomputes_by_class_what_the_policy_does(action: str) -> None:
    """Judged by Lightning's own set-up of checkpointing, which runs without a device."""
    from lightning.fabric.strategies.fsdp import _setup_activation_checkpointing
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper

    model = build_model()
    names = export(policy(Region(0, NUM_BLOCKS - 1, action)), through_python=False)
    strategy = names["trainer_arguments"](model)["strategy"]
    assert isinstance(strategy, FSDPStrategy)
    _setup_activation_checkpointing(model, strategy._activation_checkpointing_kwargs)
    wrapped = {
        name.replace("._checkpoint_wrapped_module", "")
        for name, module in model.named_modules()
        if isinstance(module, CheckpointWrapper)
    }
    paths = [""] if action == "block" else [f".{dict(UNITS)[unit]}" for unit in action.split("+")]
    assert wrapped == {f"transformer.h.{index}{path}" for index in range(NUM_BLOCKS) for path in paths}


def test_a_class_that_stands_elsewhere_too_is_refused_by_the_exported_code() -> None:
    model = build_model()
    model.extra = type(model.transformer.h[0].mlp)(8, model.config)
    names = export(policy(Region(0, NUM_BLOCKS - 1, "mlp")), through_python=False)
    with pytest.raises(ValueError, match="extra is of a class that is recomputed elsewhere; export with --python"):
        names["trainer_arguments"](model)


@pytest.mark.parametrize(
    "path, message",
    [
        ("modle", "model is 'modle', which Module does not have; its modules are model"),
        (None, r"Pair has 2 modules with blocks transformer.h \(first, second\); name the one that was tuned"),
    ],
)
def test_a_module_that_could_be_several_is_asked_for(path: str | None, message: str) -> None:
    class Pair(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = build_model(), build_model()

    module: nn.Module = Pair() if path is None else Module()
    callback = RecomputeCallback(policy(*MIX), model=path, check_batch=False)
    with pytest.raises(PolicyError, match=message):
        callback.setup(Trainer(accelerator="cpu", logger=False), module, "fit")  # type: ignore[arg-type]


def test_other_accumulation_is_refused(tmp_path: Path) -> None:
    expected = "gradient_accumulation_steps is 1 in this training, but the policy was measured with 2; set it so, or"
    with pytest.raises(PolicyError, match=expected):
        fit(tmp_path, RecomputeCallback(policy(*MIX)), accumulate_grad_batches=1)
