from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from simulation import INSPECTION, SHAPE, UNITS, failure, measure, replay

from runners.trial import ModelInspection, TrialResult, TrialSpec, TrialStatus, Verdict, Verification
from search_spaces.model_shape import BlockList, ModelShape

WriteSearch = Callable[..., Path]
Tune = Callable[..., Result]


@pytest.fixture
def check(tune: Tune, write_search: WriteSearch) -> Callable[..., Result]:
    def run(
        *options: str,
        outcome: Callable[[TrialSpec], TrialResult] = measure,
        inspection: ModelInspection = INSPECTION,
        **search: Any,
    ) -> Result:
        return tune("check", write_search(**search), *options, runner=replay(outcome, inspection=inspection))

    return run


def test_what_the_model_is_made_of_and_one_plain_step(check: Callable[..., Result], tmp_path: Path) -> None:
    result = check()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "model: Model, 1,000 parameters (ties counted once)",
        "blocks: h, 2 x Block; units: attention = attn, mlp = mlp",
        "  segments: possible",
        "plain step at micro-batch 2 x 1: 1 s, peak 27,262,976 bytes (26.0 MiB)",
        "  parameters          10.0 MiB   38%",
        "  gradients                0 B    0%",
        "  optimizer states         0 B    0%",
        "  buffers                  0 B    0%",
        "  activations         16.0 MiB   62%",
        "  temporary                0 B    0%",
        "It does not fit into 20.0 MiB. Activations are 62% of the peak, the main use of memory; without them 10.0 MiB "
        "would remain, so recompute can help.",
    ]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mlflow.db"], "a check is no study"


@pytest.mark.parametrize(
    "cap, verdict",
    [
        ("30MiB", "It fits into 30.0 MiB without recompute; recompute could only make room for something larger."),
        (
            "9MiB",
            "It does not fit into 9.0 MiB, and would not even without any activations (10.0 MiB): recompute alone",
        ),
    ],
)
def test_whether_recompute_can_help(check: Callable[..., Result], cap: str, verdict: str) -> None:
    assert check(memory_cap=cap).stdout.splitlines()[-1].startswith(verdict)


def test_the_largest_micro_batch_that_runs_is_shown(check: Callable[..., Result]) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        if spec.policy.batch.micro_batch_size == 2:
            return failure(0, TrialStatus.OUT_OF_MEMORY, "no room")
        return measure(spec)

    result = check(outcome=outcome)
    assert result.exit_code == 0
    assert "plain step at micro-batch 1 x 2: 1.5 s" in result.stdout


def test_a_model_that_does_not_train(check: Callable[..., Result]) -> None:
    result = check(outcome=lambda spec: failure(0, TrialStatus.FAILED, "h.0: shapes differ"))
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "plain step: FAILED, h.0: shapes differ"


def test_a_proof_with_something_to_say_says_it(check: Callable[..., Result]) -> None:
    noisy = Verification(verdict=Verdict.UNVERIFIED, reason="the baseline does not repeat itself")
    result = check(outcome=lambda spec: measure(spec).model_copy(update={"verification": noisy}))
    assert "  proof: UNVERIFIED, the baseline does not repeat itself" in result.stdout.splitlines()


def test_json_is_one_document_and_nothing_else(check: Callable[..., Result]) -> None:
    result = check("--json")
    assert (result.exit_code, result.stderr) == (0, "")
    data = json.loads(result.stdout)
    assert data["inspection"]["shape"]["block_lists"][0]["path"] == "h"
    assert data["baseline"]["status"] == "COMPLETED"


def test_aliases_refusals_and_notes_are_said(check: Callable[..., Result]) -> None:
    blocks = BlockList("h", "Block", 3, UNITS, aliases=((0, 2),), segment_refusal="one module stands at two positions")
    shape = ModelShape(1000, (blocks,), notes=("the head is tied to the embedding",))
    result = check(inspection=INSPECTION.model_copy(update={"shape": shape}))
    assert "  positions that hold one module and take one choice: 0, 2" in result.stdout.splitlines()
    assert "  segments: refused, one module stands at two positions" in result.stdout.splitlines()
    assert "note: the head is tied to the embedding" in result.stdout.splitlines()


def test_a_model_without_blocks_leaves_the_micro_batch(check: Callable[..., Result]) -> None:
    result = check(inspection=INSPECTION.model_copy(update={"shape": ModelShape(SHAPE.num_parameters)}))
    assert result.exit_code == 0
    assert "blocks: none found, so only the micro-batch size can be searched" in result.stdout.splitlines()
