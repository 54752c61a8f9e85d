from __future__ import annotations

from typing import Any

from simulation import MIB, results_of, trial

from runners.trial import Prediction
from tuner.report import report_html
from tuner.report.stages import StagesView, stages_view
from tuner.results import StudyResults
from tuner.summary import summarize


def in_stages(number: int, action: str, peaks: tuple[int, ...], predicted: tuple[int, ...] | None) -> Any:
    prediction = None if predicted is None else Prediction(stage_peak_memory_bytes=predicted)
    return trial(
        number,
        action,
        peak_memory_bytes=max(peaks),
        stage_peak_memory_bytes=peaks,
        stage_micro_batches=(2, 1),
        prediction=prediction,
    )


def study() -> StudyResults:
    plain = in_stages(0, "none", (40 * MIB, 20 * MIB), None)
    return results_of(plain, in_stages(1, "block", (16 * MIB, 10 * MIB), (16 * MIB - 1, 11 * MIB)))


def view(results: StudyResults) -> StagesView:
    found = stages_view(results, summarize(results))
    assert found is not None
    return found


def test_the_winner_has_a_bar_for_each_stage_under_the_cap() -> None:
    found = view(study())
    assert found.drawn.startswith("Winner, every block recomputed, trial 1: block")
    assert [(bar.title, bar.subtitle, bar.total) for bar in found.bars.bars] == [
        ("Stage 0", "2 micro-batches in flight", "16.0 MiB, predicted 16.0 MiB (+0.0%)"),
        ("Stage 1", "1 micro-batch in flight", "10.0 MiB, predicted 11.0 MiB (+10.0%)"),
    ]
    assert found.bars.mark is not None
    assert found.bars.mark.label == "cap 20.0 MiB"


def test_the_trials_beside_it_are_in_the_table() -> None:
    found = view(study())
    assert found.columns == ("stage 0", "stage 1")
    assert [(row.title, row.values[0], row.is_best) for row in found.rows] == [
        ("Winner, every block recomputed, trial 1", "16.0 MiB (+0.0%)", True),
        ("Baseline, trial 0", "40.0 MiB", False),
    ]


def test_only_a_pipeline_has_the_section() -> None:
    staged, alone = study(), results_of(trial(0), trial(1, "block"))
    assert 'id="stages"' in report_html(staged, summarize(staged))
    assert stages_view(alone, summarize(alone)) is None
    assert 'id="stages"' not in report_html(alone, summarize(alone))
