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

pytestmark = pytest.mark.timeout(3600)

#: Of the random points; another number tries other points.
FIRST_SEED = int(os.environ.get("FAULTS_SEED", "0"))
#: Studies, and how often the driver of each is killed before it may finish.
NUM_SHORT, NUM_LONG, NUM_KILLS = 1, 60, 4
EXIT_DONE, EXIT_INTERRUPTED = 0, 130


def random_point(counts: dict[str, int], chance: random.Random) -> KillPoint:
    """A function by the same chance as any other, so that what is done once is met as often as what is done often."""
    site = chance.choice(sorted(counts))
    number = chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
    return KillPoint(site, chance.randint(1, counts[site]), number)


def go_on(folder: Path, kill_point: KillPoint | None = None) -> Ended:
    """What a user does: --resume, unless nothing has begun."""
    has_begun = any((folder / "runs" / "simulated" / name).exists() for name in ("search.yaml", "results.json"))
    return Driver(folder, ("run", "search.yaml", *(["--resume"] if has_begun else [])), kill_point=kill_point).end()


def check_killed(ended: Ended, point: KillPoint) -> None:
    """Killed, or it never came to that point again and has finished, or it was told to stop and says so."""
    assert "Traceback" not in ended.logged, ended.logged
    if point.number is signal.SIGKILL:
        assert ended.code in (-signal.SIGKILL, EXIT_DONE), ended
    else:
        assert ended.code in (EXIT_INTERRUPTED, EXIT_DONE), ended
        said = ended.said + ended.logged
        assert ended.code == EXIT_DONE or "interrupted" in said, said


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(FIRST_SEED + n, id=f"seed-{FIRST_SEED + n}", marks=[pytest.mark.slow] if n >= NUM_SHORT else [])
        for n in range(NUM_LONG)
    ],
)
def test_at_random_points(
    tmp_path: Path, new_folder: Callable[[Path], Path], undisturbed: Undisturbed, seed: int
) -> None:
    chance = random.Random(seed)
    folder = new_folder(tmp_path / "study")
    kept: dict[int, dict[str, object]] = {}
    for _ in range(NUM_KILLS):
        point = random_point(undisturbed.counts, chance)
        ended = go_on(folder, point)
        print(f"seed {seed}: {point}; {len(finished_results(folder))} trials finished, exit code {ended.code}")
        check_killed(ended, point)
        assert finished_results(folder).items() >= kept.items(), "a finished trial was lost"
        kept = finished_results(folder)
    ended = go_on(folder)
    assert (ended.code, "Traceback" in ended.logged) == (EXIT_DONE, False), ended
    assert finished_results(folder).items() >= kept.items(), "a finished trial was lost"
    assert state_of(folder) == undisturbed.state
