from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from simulation import ENVIRONMENT, INSPECTION, MIB, SEARCH, failure, policy, results_of, trial

from runners.trial import Prediction, TrialStatus
from search_spaces.policy import BatchShape, RecomputePolicy
from tuner.report import front_html, report_html
from tuner.results import StudyResults
from tuner.results_file import read_results
from tuner.summary import summarize


@pytest.fixture
def results() -> StudyResults:
    return results_of(trial(0), trial(1, "block"), failure(2, TrialStatus.FAILED, "<b>h.0</b> & more", "mlp"))


def words(page: str) -> str:
    """What a reader of the page sees, its pictures apart."""
    page = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", page).split()))


def test_the_report_answers_first(results: StudyResults) -> None:
    summary = summarize(results)
    page = words(report_html(results, summary))
    assert page.startswith(f"simulated: recompute report simulated {summary.sentences[0]} {summary.sentences[1]}")
    for sentence in summary.sentences:
        assert sentence in page


def test_the_report_says_what_was_asked_and_why_it_ended(results: StudyResults) -> None:
    page = words(report_html(results, summarize(results)))
    assert "model Model, 1,000 parameters" in page
    assert "blocks h: 2 x Block (units: attention = attn, mlp)" in page
    assert "memory cap 20MiB (20,971,520 bytes)" in page
    assert "trials 3 (2 completed, 1 failed); 1 feasible" in page
    assert "ended finished: all trials were run" in page


@pytest.mark.parametrize(
    ("asked", "words_of_it"),
    [
        ({"compile": "blocks", "compile_memory_budget": [0.25, 0.5]}, "each block by itself; budgets tried: 0.25, 0.5"),
        ({"compile": "model", "compile_memory_budget": 0.5}, "the whole model; within a budget of 0.5"),
        ({"compile": "model", "compile_memory_budget": None}, "the whole model blocks h:"),
    ],
)
def test_the_report_says_what_was_compiled(asked: dict[str, object], words_of_it: str) -> None:
    results = results_of(trial(0), search={**SEARCH, "model": {**SEARCH["model"], **asked}})
    assert f"compiled {words_of_it}" in words(report_html(results, summarize(results)))


@pytest.mark.parametrize("of_study", [0.5, [0.25, 0.5]], ids=["of the study", "of the policy"])
def test_a_winner_within_the_compilers_budget_is_not_said_to_keep_everything(of_study: float | list[float]) -> None:
    own = of_study if isinstance(of_study, list) else None
    plain = replace(policy(), compile="blocks", compile_memory_budget=own and own[-1])
    winner = trial(0).model_copy(update={"policy": plain})
    asked = {**SEARCH["model"], "compile": "blocks", "compile_memory_budget": of_study}
    results = results_of(winner, cap_bytes=40 * MIB, search={**SEARCH, "model": asked}, baseline_key=plain.key)
    page = words(report_html(results, summarize(results)))
    assert "none: left to the compiler, which may keep 50% of the activations" in page
    assert "all 2 blocks left to the compiler, which may keep 50% of the activations" in page
    assert "keeps everything" not in page
    assert "keep everything" not in page


def test_the_report_lists_every_trial_and_the_environment(results: StudyResults) -> None:
    page = words(report_html(results, summarize(results)))
    assert re.search(r"1 COMPLETED block @2x1 25 tokens/s .* 12\.0 MiB MATCH best", page)
    for name, value in ENVIRONMENT.items():
        assert f"{name} {value}" in page


def test_what_models_and_messages_say_cannot_become_html() -> None:
    evil = INSPECTION.model_copy(update={"model_class": "<script>alert(1)</script>"})
    results = results_of(failure(0, TrialStatus.FAILED, "<img src=x onerror=alert(2)>"), inspection=evil)
    page = report_html(results, summarize(results))
    assert "<script>alert(1)" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<img src=x" not in front_html(results)


def test_pages_open_without_a_network(results: StudyResults) -> None:
    for page in (report_html(results, summarize(results)), front_html(results)):
        assert not re.search(r"<(script|link|img)[^>]*(src|href)=", page)


def test_a_study_without_trials_has_a_report() -> None:
    page = words(report_html(results_of(), summarize(results_of())))
    assert "No trial has finished yet." in page


def test_predictions_stand_beside_each_trial_and_their_errors_below() -> None:
    prediction = Prediction(peak_memory_bytes=25 * 2**20, time=0.6, time_deviation=0.04)
    results = results_of(trial(0, prediction=prediction), trial(1, "block"))
    page = words(report_html(results, summarize(results)))
    assert "1.00 s 0.90 +-0.06 26.0 MiB 25.0 MATCH" in page
    assert "1.30 s 12.0 MiB MATCH" in page, "nothing is shown where nothing was predicted"
    assert "predicted trials median error largest error within the 90 % interval" in page
    assert "peak memory 1 3.85% 3.85%" in page
    assert "step time 1 10.00% 10.00% 0 of 1" in page


def test_an_interrupted_study_says_so_and_how_to_go_on(results: StudyResults) -> None:
    interrupted = results.model_copy(update={"status": "interrupted", "stop_reason": "Ctrl-C"})
    page = words(report_html(interrupted, summarize(interrupted)))
    assert "The search was interrupted (Ctrl-C): this is what it knew by then." in page
    assert "interrupted" not in words(report_html(results, summarize(results)))


def test_a_study_in_which_nothing_is_feasible_shows_what_was_measured() -> None:
    results = results_of(trial(0), trial(1, "mlp"), cap_bytes=5 * 2**20)
    page = words(report_html(results, summarize(results)))
    assert "No placement is feasible: the least memory measured is" in page
    assert "Where the memory goes" in page
    assert "Where the winner recomputes" not in page


def test_a_model_without_lists_of_blocks_has_a_report() -> None:
    plain = RecomputePolicy(BatchShape.split(global_batch_size=2, micro_batch_size=1))
    inspection = INSPECTION.model_copy(update={"shape": replace(INSPECTION.shape, block_lists=())})
    results = results_of(trial(0, "none", 1).model_copy(update={"policy": plain}), inspection=inspection)
    page = words(report_html(results, summarize(results)))
    assert "blocks none found" in page
    assert "Nowhere: the model has no list of blocks to place recompute in" in page


def test_results_of_an_earlier_version_have_a_report(results: StudyResults, tmp_path: Path) -> None:
    """What was added later is missing there; so are sections of the search file."""
    data = json.loads(results.to_json())
    del data["unit_costs"]
    for record in (*data["trials"], data["baseline"]):
        del record["predicted_step_time_spread_s"]
    data["search"] = {}
    file = tmp_path / "results.json"
    file.write_text(json.dumps(data))
    earlier = read_results(file)
    assert "Best within 20.0 MiB" in words(report_html(earlier, summarize(earlier)))


def test_a_long_study_shows_its_most_telling_trials() -> None:
    failed = [failure(number, TrialStatus.FAILED, f"broken in {number}", "mlp") for number in range(300, 340)]
    results = results_of(trial(0), *(trial(number, "block") for number in range(1, 300)), *failed)
    page = words(report_html(results, summarize(results)))
    assert "The 200 most telling ones; 140 more are in results.json." in page
    assert "0 COMPLETED none @2x1" in page, "the baseline, although it is not feasible"
    assert "broken in 300" in page
    assert len(re.findall(r"failed: broken in", page)) == 15, "of each way to fail a few"


def test_a_study_that_predicts_nothing_has_no_table_of_errors(results: StudyResults) -> None:
    assert "Predicted and measured" not in words(report_html(results, summarize(results)))
