"""What results.json says of trials, without a search that ran them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runners.trial import ModelInspection, TrialResult
from tuner.objective import Objective
from tuner.results import StudyResults, StudyStatus
from tuner.results_ledger import ResultsLedger
from tuner.speed_ratio import Playoff


def build_results(
    *,
    study: str,
    search: Mapping[str, Any],
    inspection: ModelInspection,
    environment: Mapping[str, Any],
    results: Iterable[TrialResult],
    baseline_key: str,
    objective: Objective,
    status: StudyStatus = "finished",
    stop_reason: str | None = None,
    playoff: Playoff | None = None,
) -> StudyResults:
    """What a ledger says of these results, in any order."""
    ledger = ResultsLedger(
        study=study,
        search=search,
        inspection=inspection,
        environment=environment,
        baseline_key=baseline_key,
        objective=objective,
    )
    for result in results:
        ledger.add(result)
    return ledger.results(status=status, stop_reason=stop_reason, playoff=playoff)
