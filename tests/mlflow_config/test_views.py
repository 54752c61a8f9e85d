from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import pytest

from mlflow_config import names
from mlflow_config.views import FRONT_VIEW, TRIALS_VIEW, view_tags


def _state(tag: str) -> dict[str, Any]:
    packed = json.loads(tag)["state"].removeprefix("deflate;")
    state: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed)))
    return state


@pytest.mark.parametrize("view", [TRIALS_VIEW, FRONT_VIEW])
def test_views_show_the_named_columns_fastest_first(view: str) -> None:
    state = _state(view_tags(0)[f"mlflow.sharedViewState.{view}"])
    assert (state["orderByKey"], state["orderByAsc"]) == (f"metrics.`{names.SAMPLES_PER_SECOND}`", False)
    assert f"metrics.`{names.PEAK_MEMORY_BYTES}`" in state["selectedColumns"]
    assert f"tags.`{names.ON_FRONT}`" in state["selectedColumns"]


def test_views_draw_speed_over_peak_memory() -> None:
    charts = _state(view_tags(0)["mlflow.sharedViewState.trials"])["compareRunCharts"]
    axes = [(chart["type"], chart["xaxis"]["key"], chart["yaxis"]["key"]) for chart in charts]
    assert axes == [
        ("SCATTER", names.PEAK_MEMORY_BYTES, names.TOKENS_PER_SECOND),
        ("SCATTER", names.PEAK_MEMORY_BYTES, names.SAMPLES_PER_SECOND),
    ]


def test_views_fit_the_oldest_limit_of_a_tag() -> None:
    assert max(len(value) for value in view_tags(10**13).values()) <= 5000
