"""The driver of a real study killed while its trials are at work: nothing keeps running, and a resume completes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_study import EXIT_DONE, RealStudy, left_running, left_working, running
from study_state import finished_results, state_of

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1800)]

#: None and block at three micro-batches, and one block of the two.
NUM_POLICIES = 12
SIGKILLED = -9


@pytest.mark.parametrize("moment", ["baseline build", "verify", "measure", "playoff"])
def test_a_driver_that_is_killed_leaves_nothing_running(tmp_path: Path, moment: str) -> None:
    before = running()
    study = RealStudy(tmp_path / "study")
    study.write()
    driver = study.start()
    (study.folder / "kill").write_text(f"{driver.pid} {moment}")
    assert driver.wait(600) == SIGKILLED, study.logged
    assert left_working(before) == []
    kept = finished_results(study.folder)
    assert study.run("--resume") == EXIT_DONE, study.logged
    assert left_running(before) == []
    assert (study.folder / "killed").exists()
    assert "Traceback" not in study.logged
    assert finished_results(study.folder).items() >= kept.items(), "a finished trial was lost"
    assert len(state_of(study.folder).front) == NUM_POLICIES
