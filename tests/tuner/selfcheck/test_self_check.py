"""The whole check, each stack in its own process, on a small GPT-2."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from built_results import build_results
from simulation import ENVIRONMENT, MATCH

from runners.trial import ModelInspection, TrialResult, TrialStatus
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from tuner.export.base import ExportError
from tuner.export.context import context_of
from tuner.export.export_trial import export_trial
from tuner.export.registry import EXPORTERS
from tuner.export.versions import choose_version
from tuner.objective import Objective
from tuner.results import StudyResults
from tuner.selfcheck.records import SelfCheckReport
from tuner.selfcheck.self_check import describe_report, self_check

NUM_BLOCKS = 4
UNITS = (("attention", "attn"), ("mlp", "mlp"))
EVERY_BLOCK = (Region(0, NUM_BLOCKS - 1, "block"),)
EVERY_SECOND = (Region(0, 0, "block"), Region(2, 2, "block"))
MIX = (Region(0, 1, "segment", 2), Region(2, 2, "mlp"), Region(3, 3, "attention"))
ARGS = {"n_layer": NUM_BLOCKS, "n_embd": 16, "n_head": 2, "vocab_size": 32, "n_positions": 16}


def study_of(regions: tuple[Region, ...], *, preserve: bool = True, **model: Any) -> StudyResults:
    batch = BatchShape.split(global_batch_size=4, micro_batch_size=2)
    placement = BlockListPlacement("transformer.h", NUM_BLOCKS, UNITS, regions)
    trial = TrialResult(
        trial_number=0,
        policy=RecomputePolicy(batch, (placement,), preserve).canonical(),
        status=TrialStatus.COMPLETED,
        samples_per_second=1.0,
        step_time_s=4.0,
        peak_memory_bytes=1000,
        verification=MATCH,
    )
    shape = ModelShape(1000, (BlockList("transformer.h", "GPT2Block", NUM_BLOCKS, UNITS),))
    search = {
        "study": "small",
        "model": {"factory": "huggingface:gpt2", "args": ARGS, **model},
        "batch": {"global_batch_size": 4, "sequence_length": 16},
        "memory_cap": "1GiB",
    }
    return build_results(
        study="small",
        search=search,
        inspection=ModelInspection(
            shape=shape, model_class="GPT2LMHeadModel", tokens_per_sample=16, device_memory_bytes=10**9, environment={}
        ),
        environment=ENVIRONMENT,
        results=[trial],
        baseline_key="",
        objective=Objective(memory_cap_bytes=2**30),
    )


def checked(
    target: str, study: StudyResults, *, through_python: bool = False, edit: tuple[str, str] | None = None
) -> SelfCheckReport:
    exporter = EXPORTERS[target]
    context = context_of(study, choose_version(exporter, None), through_python=through_python)
    text = export_trial(exporter, study, study.trials[0], context)
    if edit is not None:
        assert edit[0] in text
        text = text.replace(*edit)
    return self_check(exporter, study, study.trials[0], context, text)


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in ("transformers", *packages) if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "target, regions, through_python",
    [
        pytest.param("policy", MIX, False, marks=needs()),
        pytest.param("huggingface", EVERY_SECOND, False, marks=needs("accelerate")),
        pytest.param("huggingface", MIX, True, marks=needs("accelerate")),
        pytest.param("accelerate", EVERY_BLOCK, False, marks=needs("accelerate")),
        pytest.param("axolotl", EVERY_SECOND, False, marks=needs("axolotl", "accelerate")),
        pytest.param("deepspeed", MIX, True, marks=needs("deepspeed")),
        pytest.param("lightning", (Region(0, NUM_BLOCKS - 1, "mlp"),), False, marks=needs("lightning")),
    ],
)
def test_the_stack_recomputes_what_the_policy_does(
    target: str, regions: tuple[Region, ...], through_python: bool
) -> None:
    study = study_of(regions, preserve=target != "accelerate")
    report = checked(target, study, through_python=through_python)
    assert report.agrees, describe_report(report)
    assert report.num_recomputed > 0
    assert describe_report(report)[-1] == f"check: it recomputes the same {report.num_recomputed} modules as the policy"


@pytest.mark.slow
@needs("accelerate")
def test_a_file_that_says_something_else_is_found_out() -> None:
    report = checked("huggingface", study_of(EVERY_SECOND), edit=("every_n_layers: 2", "every_n_layers: 3"))
    assert not report.agrees
    assert report.only_policy[0].startswith("transformer.h.2.")
    assert report.only_stack[0].startswith("transformer.h.3.")
    _, first, second = describe_report(report)
    assert first.startswith("check: DIFFERENT, recomputed by the policy, not the stack: transformer.h.2.")
    assert second.startswith("check: DIFFERENT, recomputed by the stack, not the policy: transformer.h.3.")


def test_a_stack_that_does_not_run_here_is_said_so() -> None:
    report = checked("megatron", study_of(EVERY_BLOCK))
    assert not report.agrees
    (line,) = describe_report(report)
    assert line.startswith("check: not done, since megatron does not run without a device; known are policy,")


def test_a_model_that_is_not_here_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExportError, match=r"--check: study small names model.factory, .*; run it in the folder of the"):
        checked("policy", study_of(MIX, factory="model.py:build", args={}))


@pytest.mark.slow
@needs("llamafactory", "datasets", "peft", "accelerate")
def test_a_stack_beside_a_release_that_it_refuses_is_said_so_in_its_own_words() -> None:
    """LLaMA-Factory 0.9 wants transformers up to 5.6, which is older than what the other stacks here want."""
    report = checked("llamafactory", study_of(EVERY_BLOCK))
    (line,) = describe_report(report)
    assert report.agrees or "does not start here: transformers>=" in line
