"""Twenty steps of transformers' Trainer on a CPU: what the study promised, and the losses of plain training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate")

sys.path.append(str(Path(__file__).parent))

from fine_tuning import (
    BATCH,
    MIX,
    NUM_BLOCKS,
    NUM_STEPS,
    PeakOfOneStep,
    RandomTokens,
    build_model,
    policy,
    promised_peak_bytes,
)
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments

from search_spaces.policy import PolicyError, RecomputePolicy, Region
from search_spaces.policy_file import dump_policy
from search_spaces.yaml_text import dump_yaml
from tuner.export.base import ExportContext
from tuner.export.registry import EXPORTERS
from tuner.export.versions import choose_version
from tuner.integrations.huggingface import RecomputeCallback

HUGGINGFACE = EXPORTERS["huggingface"]


def exported(folder: Path, of: RecomputePolicy, *, through_python: bool = False, **more: object) -> TrainingArguments:
    """The exported fields, read by the stack's own parser, with what a user adds."""
    from fine_tuning import UNITS

    from search_spaces.model_shape import BlockList

    blocks = BlockList("transformer.h", "GPT2Block", NUM_BLOCKS, UNITS)
    context = ExportContext(choose_version(HUGGINGFACE, None), (blocks,), through_python=through_python)
    own = {
        "output_dir": str(folder),
        "max_steps": NUM_STEPS,
        "logging_steps": 1,
        "learning_rate": 1e-4,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.01,
        "max_grad_norm": 0.0,
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "seed": 3,
        "logging_nan_inf_filter": False,
    }
    file = folder / "arguments.yaml"
    file.write_text(dump_yaml({**HUGGINGFACE.settings(of, context), **own, **more}))
    (arguments,) = HfArgumentParser(TrainingArguments).parse_yaml_file(str(file))  # type: ignore[arg-type]
    return arguments


class MeasureLastStep(TrainerCallback):
    def __init__(self, peak: PeakOfOneStep) -> None:
        self._peak = peak

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == NUM_STEPS - 2:
            self._peak.start_recording()
        if state.global_step == NUM_STEPS - 1:
            self._peak.start_step()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == NUM_STEPS:
            self._peak.end_step()


def train(arguments: TrainingArguments, *callbacks: TrainerCallback) -> tuple[list[float], int]:
    """Loss of each step, and the peak of the last one."""
    data = RandomTokens()
    peak = PeakOfOneStep()
    trainer = Trainer(build_model(), arguments, train_dataset=data, callbacks=[*callbacks, MeasureLastStep(peak)])
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], peak.peak_bytes


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], int]:
    return train(exported(tmp_path_factory.mktemp("plain"), policy()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "regions, through_python",
    [
        ((Region(0, NUM_BLOCKS - 1, "block"),), False),
        (tuple(Region(i, i, "block") for i in range(0, NUM_BLOCKS, 2)), False),
        (MIX, True),
    ],
    ids=["every block by config", "every second block by config", "a mix with segments by callback"],
)
def test_twenty_steps_are_what_the_study_promised(
    regions: tuple[Region, ...], through_python: bool, tmp_path: Path, plain: tuple[list[float], int]
) -> None:
    of = policy(*regions)
    dump_policy(of, tmp_path / "policy.yaml")
    callbacks = [RecomputeCallback(tmp_path / "policy.yaml")] if through_python else []
    losses, peak = train(exported(tmp_path, of, through_python=through_python), *callbacks)
    plain_losses, plain_peak = plain
    assert len(losses) == NUM_STEPS
    assert losses == plain_losses
    promised = promised_peak_bytes(of)

    assert peak == pytest.approx(promised, rel=0.001)
    assert peak < 0.9 * plain_peak


def test_a_trainer_that_recomputes_by_itself_is_refused(tmp_path: Path) -> None:
    arguments = exported(tmp_path, policy(Region(0, NUM_BLOCKS - 1, "block")))
    with pytest.raises(
        PolicyError, match=r"activation_checkpointing is true in TrainingArguments, .*; set it to false"
    ):
        Trainer(build_model(), arguments, callbacks=[RecomputeCallback(policy(*MIX))])


def test_another_division_of_the_batch_is_refused_unless_wanted(tmp_path: Path) -> None:
    arguments = exported(tmp_path, policy(), gradient_accumulation_steps=1)
    expected = "gradient_accumulation_steps is 1 in this training, but the policy was measured with 2; set it so, or"
    with pytest.raises(PolicyError, match=expected):
        Trainer(build_model(), arguments, callbacks=[RecomputeCallback(policy(*MIX))])
    Trainer(build_model(), arguments, callbacks=[RecomputeCallback(policy(*MIX), check_batch=False)])


def test_after_training_the_model_is_as_plain_training_leaves_it_and_can_be_trained_again(tmp_path: Path) -> None:
    # The Trainer may leave marks of its own on a model.
    plain = build_model()
    Trainer(plain, exported(tmp_path, policy(), max_steps=1), train_dataset=RandomTokens()).train()
    model = build_model()
    trainer = Trainer(
        model,
        exported(tmp_path, policy(), max_steps=1),
        train_dataset=RandomTokens(),
        callbacks=[RecomputeCallback(policy(*MIX))],
    )
    recomputed = model.transformer.h[5]
    assert "forward" in vars(recomputed)
    trainer.train()
    assert "forward" not in vars(recomputed)
    assert [vars(module).keys() for module in model.modules()] == [vars(module).keys() for module in plain.modules()]
    trainer.train()
    assert trainer.state.global_step == 1
    assert BATCH.global_batch_size == trainer.args.train_batch_size * trainer.args.gradient_accumulation_steps
