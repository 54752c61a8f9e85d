from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from simulated_profile import DRY_RUN
from simulation import INSPECTION, MIB, SHAPE, UNITS, failure, measure

from runners.diagnosis.records import (
    AttentionUse,
    Diagnosis,
    DiagnosisSpec,
    HeldTensors,
    ModelHabits,
    PeakSplit,
    PlaceMemory,
    UnitCost,
)
from runners.parallel.records import CollectiveCount, Communication, PipelineCut
from runners.replay_runner import ReplayRunner
from runners.trial import MemoryByKind, ModelInspection, TrialResult, TrialSpec, TrialStatus, Verdict, Verification
from search_spaces.model_shape import BlockList, ModelShape

WriteSearch = Callable[..., Path]
Tune = Callable[..., Result]


def memory(**kinds: int) -> MemoryByKind:
    return MemoryByKind(**{kind: MIB * kinds.get(kind, 0) for kind in MemoryByKind.model_fields})


def split(size: int, summary: str, *places: PlaceMemory) -> PeakSplit:
    kinds = {k: sum(getattr(p.memory_bytes, k) for p in places) for k in MemoryByKind.model_fields}
    logits = HeldTensors(
        module="head",
        stage="after",
        operator="aten.mm",
        shape=(2, 16, 1000),
        dtype="float32",
        kind="activations",
        count=1,
        num_bytes=2 * MIB,
    )
    return PeakSplit(
        policy_summary=summary,
        micro_batch_size=size,
        gradient_accumulation_steps=2 // size,
        peak_memory_bytes=sum(kinds.values()),
        memory_bytes=MemoryByKind(**kinds),
        unseen_bytes=0,
        places=places,
        held=(logits,),
    )


def block(index: int, kept: int) -> PlaceMemory:
    return PlaceMemory(blocks="h", block=index, unit="mlp", memory_bytes=memory(parameters=3, activations=kept))


HEAD = PlaceMemory(module="head", stage="after", memory_bytes=memory(parameters=4, activations=2))


class DiagnosedRunner(ReplayRunner):
    """Answers every diagnosis with what was recorded of the simulated model."""

    def diagnosis(self, spec: DiagnosisSpec) -> Diagnosis:
        self.asked = spec
        return Diagnosis(
            plain=split(2, "none @2x1", block(0, 7), block(1, 7), HEAD),
            floors=tuple(split(p.batch.micro_batch_size, p.summary(), block(0, 1), HEAD) for p in spec.floors),
            habits=ModelHabits(
                attention=(AttentionUse(kernel="aten.flash", is_fused=True, num_calls=2, modules=("h.0.attn",)),)
            ),
            kept_bytes=16 * MIB,
            unit_costs=(
                UnitCost(
                    blocks="h", first=0, last=0, action="mlp", micro_batch_size=2, saved_bytes=MIB, rebuild_time_s=0.004
                ),
                UnitCost(
                    blocks="h",
                    first=1,
                    last=1,
                    action="block",
                    micro_batch_size=2,
                    saved_bytes=MIB,
                    rebuild_time_s=0.002,
                ),
            ),
        )


@pytest.fixture
def check(tune: Tune, write_search: WriteSearch) -> Callable[..., Result]:
    def run(
        *options: str,
        outcome: Callable[[TrialSpec], TrialResult] = measure,
        inspection: ModelInspection = INSPECTION,
        runner_type: type[ReplayRunner] = DiagnosedRunner,
        **search: Any,
    ) -> Result:
        return tune("check", write_search(**search), *options, runner=runner_type(outcome, inspection=inspection))

    return run


def test_what_the_model_is_made_of_and_one_plain_step(check: Callable[..., Result], tmp_path: Path) -> None:
    result = check()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[:11] == [
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
        "",
    ]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mlflow.db"], "a check is no study"


def test_everything_fits_into_100_columns(check: Callable[..., Result]) -> None:
    assert max(len(line.rstrip()) for line in check().stdout.splitlines()) <= 100


class TestDiagnosis:
    def test_says_who_holds_the_peak(self, check: Callable[..., Result]) -> None:
        rows = [line.split() for line in check().stdout.splitlines()]
        assert ["h,", "all", "2", "6.0", "14.0", "20.0", "77%"] in rows
        assert ["0-1,", "each", "3.0", "7.0", "10.0", "38%"] in rows, "alike blocks share a row"
        assert ["head", "4.0", "2.0", "6.0", "23%"] in rows
        assert ["all", "10.0", "16.0", "26.0", "100%"] in rows

    def test_says_the_floor_at_both_ends_and_what_holds_it(self, check: Callable[..., Result]) -> None:
        text = " ".join(check().stdout.split())
        assert "floor at micro-batch 2 x 1: nothing was predicted, so recompute of every block is looked at" in text
        assert "floor at micro-batch 1 x 2:" in text
        assert "2.0 MiB head: 2 x 16 x 1000 float32 from aten.mm (activations)" in text

    def test_says_whether_activations_are_the_main_use(self, check: Callable[..., Result]) -> None:
        assert "Activations of the blocks are the main use of memory: 54% of the peak." in check().stdout

    def test_says_what_else_helps(self, check: Callable[..., Result]) -> None:
        text = " ".join(check().stdout.split())
        assert "states: parameters, gradients and optimizer states are 7.0 MiB, 70% of the floor" in text
        assert "smaller micro-batch: does not help, the floor is 10.0 MiB at micro-batch 1 and 10.0 MiB at 2" in text

    def test_warns_of_fused_attention(self, check: Callable[..., Result]) -> None:
        text = " ".join(check().stdout.split())
        assert "attention: aten.flash, 2 calls (h.0.attn). A fused kernel" in text

    def test_names_the_largest_micro_batches_that_fit(self, tune: Tune, write_search: WriteSearch) -> None:
        def check(*options: str) -> str:
            runner = DiagnosedRunner(measure, inspection=INSPECTION, dry_run=DRY_RUN)
            return tune("check", write_search(), *options, runner=runner).stdout

        text = " ".join(check().split())
        assert "The largest micro-batch at which some placement fits is 2, without recompute 1" in text
        data = json.loads(check("--json"))
        assert data["predicted_peaks"] == [
            {"micro_batch_size": 2, "plain_bytes": 26 * MIB, "least_bytes": 12 * MIB},
            {"micro_batch_size": 1, "plain_bytes": 18 * MIB, "least_bytes": 11 * MIB},
        ]

    def test_shows_the_best_trade_first(self, check: Callable[..., Result]) -> None:
        rows = [line.split() for line in check().stdout.splitlines()]
        best = rows.index(["1", "block", "1.0", "MiB", "2.00", "ms", "512.0", "KiB"])
        assert rows[best + 1] == ["0", "mlp", "1.0", "MiB", "4.00", "ms", "256.0", "KiB"]

    def test_without_one_the_trial_alone_is_told(self, check: Callable[..., Result]) -> None:
        result = check(runner_type=ReplayRunner)
        assert result.exit_code == 0
        assert result.stdout.splitlines()[-2:] == [
            "diagnosis: none, no diagnosis was recorded",
            "It does not fit into 20.0 MiB. Activations are 62% of the peak; without them 10.0 MiB would remain, so "
            "recompute can help.",
        ]


@pytest.mark.parametrize(
    "cap, verdict",
    [
        ("30MiB", "It fits into 30.0 MiB without recompute; recompute could only make room for something larger."),
        ("20MiB", "It does not fit into 20.0 MiB; with recompute it can, down to 10.0 MiB."),
        ("9MiB", "It does not fit into 9.0 MiB, and no placement that was looked at does: the floor is 10.0 MiB."),
    ],
)
def test_whether_recompute_can_help(check: Callable[..., Result], cap: str, verdict: str) -> None:
    assert verdict in " ".join(check(memory_cap=cap).stdout.split())


def test_the_largest_micro_batch_that_runs_is_shown(check: Callable[..., Result]) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        if spec.policy.batch.micro_batch_size == 2:
            return failure(0, TrialStatus.OUT_OF_MEMORY, "no room")
        return measure(spec)

    result = check(outcome=outcome)
    assert result.exit_code == 0
    assert "plain step at micro-batch 1 x 2: 1.5 s" in result.stdout


def test_sizes_above_the_one_that_runs_are_not_asked_for(tune: Tune, write_search: WriteSearch) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        if spec.policy.batch.micro_batch_size == 2:
            return failure(0, TrialStatus.OUT_OF_MEMORY, "no room")
        return measure(spec)

    runner = DiagnosedRunner(outcome, inspection=INSPECTION)
    tune("check", write_search(), runner=runner)
    assert runner.asked.choices.micro_batch_sizes == (1,)
    assert [policy.summary() for policy in runner.asked.floors] == ["block @1x2"]


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
    assert data["memory_cap_bytes"] == 20 * MIB
    diagnosis = Diagnosis.model_validate(data["diagnosis"])
    assert diagnosis.plain is not None
    assert [floor.micro_batch_size for floor in diagnosis.floors] == [2, 1]
    assert len(diagnosis.unit_costs) == 2


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


class TestPipeline:
    CUT = PipelineCut(blocks="h", first_blocks=(0, 1), num_blocks=2, outside_bytes=(0, 0), hidden_bytes=(0,))

    @pytest.fixture
    def text(self, tune: Tune, write_search: WriteSearch) -> str:
        def outcome(spec: TrialSpec) -> TrialResult:
            of_stages = {"stage_peak_memory_bytes": (26 * MIB, 18 * MIB), "stage_micro_batches": (2, 1)}
            transfers = CollectiveCount(calls=4, bytes=4096, calls_added_by_recompute=0)
            return measure(spec).model_copy(
                update=of_stages | {"communication": Communication(point_to_point=transfers)}
            )

        inspection = INSPECTION.model_copy(update={"pipeline_cut": self.CUT})
        runner = DiagnosedRunner(outcome, inspection=inspection, dry_run=DRY_RUN)
        search = write_search(runner={"strategy": "pipeline", "pipeline_stages": 2})
        shown = " ".join(tune("check", search, runner=runner).stdout.split())
        assert runner.asked.floors == (), "one process cannot run what fits a stage"
        return shown

    def test_stages_are_told_with_what_they_send(self, text: str) -> None:
        assert "stage 0: peak 26.0 MiB, 2 micro-batches in flight; stage 1: peak 18.0 MiB, 1" in text
        sent = "4 point-to-point transfers (4.0 KiB) per step; recompute adds none"
        assert f"communication of the stage that sends and receives most: {sent}" in text

    def test_the_floor_is_that_of_the_worst_stage(self, text: str) -> None:
        assert "floor at micro-batch 1 x 2: no placement of this search is predicted to take less than" in text
        assert "on each stage is 1" in text
        assert "What helps besides recompute" not in text, "that is reckoned for one process"
