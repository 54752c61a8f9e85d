from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulation import SEARCH, policy, results_of, trial

from runners.parallel.records import CollectiveCount, Communication
from tuner.report import report_html
from tuner.report.communication import CommunicationTable, communication_table
from tuner.results import StudyResults
from tuner.summary import summarize

RUNNER = {"runner": {"strategy": "fsdp2", "data_parallel_degree": 4}}


def sent(gathers: int, added: int | None = 0) -> Communication:
    def count(calls: int, added: int | None) -> CollectiveCount:
        more = None if added is None else 1024 * added
        return CollectiveCount(
            calls=calls, bytes=1024 * calls, calls_added_by_recompute=added, bytes_added_by_recompute=more
        )

    nothing = None if added is None else 0
    return Communication(
        all_gather=count(gathers, added), reduce_scatter=count(3, nothing), all_reduce=count(0, nothing)
    )


def study(communication: Communication | None, *, whole: bool = False, **runner: Any) -> StudyResults:
    placed = replace(policy("block"), reshard_after_forward=False if whole else None)
    search = {**SEARCH, "runner": {**RUNNER["runner"], **runner}}
    return results_of(
        trial(0, peak_memory_bytes=10**9, communication=sent(5)),
        trial(1, communication=communication).model_copy(update={"policy": placed}),
        search=search,
    )


def table(results: StudyResults) -> CommunicationTable:
    found = communication_table(results, summarize(results))
    assert found is not None
    return found


def test_kinds_that_nobody_started_are_left_out() -> None:
    columns = ("whole after forward", "all-gather", "reduce-scatter", "added by recompute")
    assert table(study(sent(7, 2))).columns == columns


def test_a_trial_has_calls_bytes_and_what_recompute_adds() -> None:
    row = table(study(sent(7, 2))).rows[0]
    assert row.title == "Every block recomputed, trial 1"
    assert row.values == ("no", "7 (7.0 KiB)", "3 (3.0 KiB)", "+2 all-gather (+2.0 KiB)")


@pytest.mark.parametrize(("added", "text"), [(0, "none"), (None, "not measured"), (-1, "-1 all-gather (-1.0 KiB)")])
def test_what_recompute_adds_in_words(added: int | None, text: str) -> None:
    assert table(study(sent(7, added))).rows[0].values[-1] == text


def test_blocks_that_stay_whole_are_told() -> None:
    assert table(study(sent(4), whole=True)).rows[0].values[0] == "yes"


def test_ddp_has_nothing_to_divide_again() -> None:
    assert table(study(sent(4), strategy="ddp")).columns == ("all-gather", "reduce-scatter", "added by recompute")


def test_a_study_of_single_processes_has_no_such_section() -> None:
    results = results_of(trial(0), trial(1, "block"))
    assert communication_table(results, summarize(results)) is None
    assert 'id="communication"' not in report_html(results, summarize(results))


def test_the_page_has_the_section() -> None:
    results = study(sent(7, 2))
    page = report_html(results, summarize(results))
    assert "What each of 1 ranks under fsdp2 takes part in per optimizer step" in page
    assert "+2 all-gather (+2.0 KiB)" in page
