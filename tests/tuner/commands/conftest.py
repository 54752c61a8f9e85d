"""A study that ended, without having run it."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulation import results_of, trial

from tuner.results import StudyResults


@pytest.fixture
def study() -> StudyResults:
    return results_of(
        trial(0), trial(1, "block"), trial(2, "none", 1), trial(3, "mlp"), stop_reason="all 4 trials were run"
    )


@pytest.fixture
def runs(tmp_path: Path, study: StudyResults) -> Path:
    """A folder of studies with that one, which is called simulated."""
    folder = tmp_path / "runs" / "simulated"
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(study.to_json())
    return tmp_path / "runs"
