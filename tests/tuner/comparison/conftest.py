"""Studies of the simulated model, with a search file as complete as a comparison needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simulation import ENVIRONMENT, MIB, results_of

from runners.trial import TrialResult
from tuner.comparison.compare_studies import compare_studies
from tuner.comparison.records import Comparison
from tuner.results import StudyResults

SEARCH: dict[str, Any] = {
    "study": "simulated",
    "model": {"factory": "model.py:build", "args": {"depth": 2}, "dtype": "float32", "autocast": None},
    "batch": {"global_batch_size": 2, "micro_batch_sizes": "auto", "sequence_length": 16, "factory": None},
    "optimizer": {"name": "adamw", "args": {"lr": 0.0001}},
    "memory_cap": "20MiB",
    "output_dir": "runs",
}


@pytest.fixture
def study_of() -> Callable[..., StudyResults]:
    def make(
        *trials: TrialResult, cap_bytes: int = 20 * MIB, environment: dict[str, Any] | None = None, **changes: Any
    ) -> StudyResults:
        """A study with these trials; other changes are options of the search file, ``__`` between the parts."""
        options = {key: changes.pop(key) for key in list(changes) if "__" in key}
        search = {key: dict(value) if isinstance(value, dict) else value for key, value in SEARCH.items()}
        for name, value in options.items():
            section, _, key = name.partition("__")
            search[section][key] = value
        return results_of(
            *trials,
            cap_bytes=cap_bytes,
            search=search,
            environment={**ENVIRONMENT, **(environment or {})},
            **changes,
        )

    return make


@pytest.fixture
def compare() -> Callable[[StudyResults, StudyResults], Comparison]:
    return lambda a, b: compare_studies((Path("runs/a"), a), (Path("runs/b"), b))
