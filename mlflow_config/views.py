"""Ready-made views of MLflow's experiment page: which runs, which columns, which chart.

MLflow's page keeps a saved view as a tag of the experiment, compressed JSON of the page's own state. Releases that do
not know a key of it leave that key out; releases without saved views still show the page as it comes.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence

from mlflow_config import names

#: What the page's address calls each view.
TRIALS_VIEW = "trials"
FRONT_VIEW = "front"

_TAG_PREFIX = "mlflow.sharedViewState."
#: What MLflow puts before text that it has deflated and written in base64.
_DEFLATED = "deflate;"
_COLUMNS = (
    f"metrics.`{names.TOKENS_PER_SECOND}`",
    f"metrics.`{names.SAMPLES_PER_SECOND}`",
    f"metrics.`{names.RELATIVE_SPEED}`",
    f"metrics.`{names.PEAK_MEMORY_BYTES}`",
    f"params.`{names.POLICY_SUMMARY}`",
    f"params.`{names.MICRO_BATCH_SIZE}`",
    f"tags.`{names.STUDY}`",
    f"tags.`{names.VERDICT}`",
    f"tags.`{names.FEASIBLE}`",
    f"tags.`{names.ON_FRONT}`",
    f"tags.`{names.IS_BEST}`",
    f"tags.`{names.STATUS}`",
    f"tags.`{names.REASON}`",
)
_CHART_SECTION = "speed-over-memory"


def view_tags(now_ms: int) -> dict[str, str]:
    """Tags for a new experiment: its saved views. ``now_ms`` is when they were made, from the Unix epoch."""
    return {
        f"{_TAG_PREFIX}{TRIALS_VIEW}": _view("Trials", f"tags.{names.TRIAL_NUMBER} LIKE '%'", now_ms),
        f"{_TAG_PREFIX}{FRONT_VIEW}": _view("Pareto front", f"tags.{names.ON_FRONT} = 'true'", now_ms),
    }


def _view(title: str, search: str, now_ms: int) -> str:
    state = {
        "searchFilter": search,
        # Every trial that was measured has it, also where samples are not sequences.
        "orderByKey": f"metrics.`{names.SAMPLES_PER_SECOND}`",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "selectedColumns": list(_COLUMNS),
        "runsHiddenMode": "SHOWALL",
        "hideEmptyCharts": True,
        "compareRunCharts": _charts((names.TOKENS_PER_SECOND, names.SAMPLES_PER_SECOND)),
        "compareRunSections": [
            {"uuid": _CHART_SECTION, "name": "Speed over peak memory", "display": True, "isReordered": False}
        ],
    }
    packed = _DEFLATED + base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    return json.dumps({"name": title, "createdAt": now_ms, "updatedAt": now_ms, "state": packed})


def _charts(speeds: Sequence[str]) -> list[dict[str, object]]:
    return [
        {
            "type": "SCATTER",
            "uuid": f"{speed}-over-memory",
            "metricSectionId": _CHART_SECTION,
            "deleted": False,
            "isGenerated": False,
            "runsCountToCompare": 100,
            "xaxis": {"key": names.PEAK_MEMORY_BYTES, "type": "METRIC"},
            "yaxis": {"key": speed, "type": "METRIC"},
        }
        for speed in speeds
    ]
