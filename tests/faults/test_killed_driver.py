"""The driver killed at any point: nothing that was finished is lost or counted twice, and a resume ends the same."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from drivers import Driver, Ended, KillPoint
from study_state import Undisturbed, finished_results, state_of

#: Of the random points; another number tries other points.
FIRST_SEED = int(os.environ.get("FAULTS_SEED", "0"))
NUM_SHORT, NUM_LONG = 6, 240
EXIT_DONE, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 0, 2, 130


def random_point(counts: dict[str, int], seed: int) -> KillPoint:
    """A function by the same chance as any other, so that what is done once is met as often as what is done often."""
    chance = random.Random(seed)
    site = chance.choice(sorted(counts))
    number = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
    return KillPoint(site, chance.randint(1, counts[site]), number)


def finish(folder: Path) -> Ended:
    """What a user does next: --resume, and where that says that nothing has begun, without."""
    ended = Driver(folder, ("run", "search.yaml", "--resume")).end()
    if ended.code == EXIT_BAD_INPUT and "there is no study simulated in" in ended.logged:
        ended = Driver(folder, ("run", "search.yaml")).end()
    return ended


def check_end(folder: Path, undisturbed: Undisturbed, *, kept: dict[int, dict[str, object]]) -> None:
    state = state_of(folder)
    assert state == undisturbed.state
    assert finished_results(folder).items() >= kept.items()


def check_killed(ended: Ended, point: KillPoint) -> None:
    assert "Traceback" not in ended.logged, ended.logged
    if point.number is signal.SIGKILL:
        assert ended.code in (-signal.SIGKILL, EXIT_DONE), ended
    else:
        assert ended.code in (EXIT_INTERRUPTED, EXIT_DONE), ended
        said = ended.said + ended.logged
        assert ended.code == EXIT_DONE or "interrupted" in said, said


def kill_and_finish(folder: Path, undisturbed: Undisturbed, point: KillPoint) -> None:
    print(point)
    check_killed(Driver(folder, ("run", "search.yaml"), kill_point=point).end(), point)
    kept = finished_results(folder)
    ended = finish(folder)
    assert ended.code == EXIT_DONE, ended
    assert "Traceback" not in ended.logged
    check_end(folder, undisturbed, kept=kept)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(FIRST_SEED + n, id=f"seed-{FIRST_SEED + n}", marks=[pytest.mark.slow] if n >= NUM_SHORT else [])
        for n in range(NUM_LONG)
    ],
)
def test_at_a_random_point(
    tmp_path: Path, new_folder: Callable[[Path], Path], undisturbed: Undisturbed, seed: int
) -> None:
    kill_and_finish(new_folder(tmp_path / "study"), undisturbed, random_point(undisturbed.counts, seed))
