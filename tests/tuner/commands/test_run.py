from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import simulation
from click.testing import Result
from simulation import failure, measure, replay

from runners.base import RunnerError, WorkloadError
from runners.replay_runner import ReplayRunner
from runners.trial import InspectionSpec, ModelInspection, TrialResult, TrialSpec, TrialStatus

WriteSearch = Callable[..., Path]
Tune = Callable[..., Result]
PROGRAM = f"'{sys.executable}' '{simulation.__file__}'"


def test_a_search_that_found_something(tune: Tune, write_search: WriteSearch, tmp_path: Path) -> None:
    result = tune("run", write_search())
    assert result.exit_code == 0
    title, *_ = result.stdout.splitlines()
    assert title.strip() == "simulated: fastest within 20.0 MiB"
    assert "Best within 20.0 MiB: trial " in result.stdout
    assert "\nStopped: space exhausted: all 8 policies were tried.\n" in result.stdout
    folder = tmp_path / "runs" / "simulated"
    files = ", ".join(str(folder / name) for name in ("policy.yaml", "report.html", "results.json"))
    assert result.stdout.endswith(f"\nFiles: {files}\n")
    lines = [line for line in result.stderr.splitlines() if line.startswith("trial ")]
    assert len(lines) == 8, "one plain line per trial where there is no terminal"
    assert lines[0].startswith(
        "trial   0  COMPLETED         32 tokens/s  step 1.00 s   peak 26.0 MiB   MATCH     none @2x1  ["
    )
    assert lines[0].endswith("]  (its peak is 30.0% over the cap)")
    assert "\x1b" not in result.stderr + result.stdout
    assert "trial   0" not in result.stdout


def test_json_is_one_document_and_nothing_else(tune: Tune, write_search: WriteSearch, tmp_path: Path) -> None:
    result = tune("run", write_search(search__num_trials=2), "--json")
    assert result.exit_code == 0
    assert result.stdout == (tmp_path / "runs" / "simulated" / "results.json").read_text()
    assert json.loads(result.stdout)["status"] == "finished"
    assert "trial   0  COMPLETED" in result.stderr


def test_nothing_feasible_has_its_own_exit_code(tune: Tune, write_search: WriteSearch) -> None:
    result = tune("run", write_search(memory_cap="1MiB", search__num_trials=2))
    assert result.exit_code == 3
    assert "No placement is feasible: the least memory measured is 12.0 MiB" in result.stdout
    assert "policy.yaml" not in result.stdout


def test_only_out_of_memory_is_nothing_feasible(tune: Tune, write_search: WriteSearch) -> None:
    runner = replay(lambda spec: failure(spec.trial_number, TrialStatus.OUT_OF_MEMORY, "no room for h.0"))
    result = tune("run", write_search(search__num_trials=2), runner=runner)
    assert result.exit_code == 3
    assert "2 ran out of memory" in result.stdout


def test_a_search_that_failed(tune: Tune, write_search: WriteSearch) -> None:
    runner = replay(lambda spec: failure(spec.trial_number, TrialStatus.FAILED, "h.0: shapes differ"))
    result = tune("run", write_search(), runner=runner)
    assert result.exit_code == 1
    assert "No trial could be measured; the first one: FAILED, h.0: shapes differ." in result.stdout
    assert "Stopped: the model does not train without recompute: h.0: shapes differ." in result.stdout


def test_an_interrupted_search_says_how_to_go_on(tune: Tune, write_search: WriteSearch) -> None:
    def outcome(spec: TrialSpec) -> TrialResult:
        if spec.trial_number == 2:
            signal.raise_signal(signal.SIGINT)
        return measure(spec)

    file = write_search(search__num_trials=4)
    result = tune("run", file, runner=replay(outcome))
    assert result.exit_code == 130
    assert "Stopped: interrupted by the user.\nWhat was measured is kept; continue with --resume.\n" in result.stdout
    assert tune("run", file, "--resume").exit_code == 0


def test_an_interrupt_before_there_is_anything_to_keep(tune: Tune, write_search: WriteSearch) -> None:
    class Interrupted(ReplayRunner):
        def inspect(self, spec: InspectionSpec) -> ModelInspection:
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("the signal was not taken")

    result = tune("run", write_search(), runner=Interrupted(measure))
    assert (result.exit_code, result.stdout) == (130, "")
    assert result.stderr.splitlines()[-1] == "interrupted"


class Refusing(ReplayRunner):
    def __init__(self, error: RunnerError) -> None:
        super().__init__(measure)
        self._error = error

    def inspect(self, spec: InspectionSpec) -> ModelInspection:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        WorkloadError("model.factory is model.py:build, whose build() failed: NameError, name 'nn' is not defined"),
        RunnerError("runner.resources_per_trial asks GPU: 1, but no node can give that; the cluster has CPU: 2 in all"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_cannot_run_is_one_line(tune: Tune, write_search: WriteSearch, tmp_path: Path, error: RunnerError) -> None:
    result = tune("run", write_search(), runner=Refusing(error))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[1:] == [str(error)]  # after the line that says where trials run
    assert not (tmp_path / "runs" / "simulated").exists()


def test_a_runner_is_closed_whatever_happens(tune: Tune, write_search: WriteSearch) -> None:
    refusing, finished = Refusing(RunnerError("no")), replay()
    tune("run", write_search(), runner=refusing)
    tune("run", write_search(search__num_trials=1), runner=finished)
    for runner in (refusing, finished):
        with pytest.raises(RunnerError, match="after the runner was closed"):
            runner.submit(TrialSpec(trial_number=0, policy=simulation.policy(), workload=simulation.WORKLOAD))


@pytest.mark.parametrize(
    "changes, options, line",
    [
        ({}, ["--resume"], "there is no study simulated in {runs} to resume; run without --resume"),
        (
            {"memory_cap": "2TiB"},
            [],
            "memory_cap is 2TiB, 2,199,023,255,552 bytes (2.0 TiB), but the device (a simulated",
        ),
        ({"memory_cap": 40}, [], "memory_cap is '40', a number without a unit; write 40GiB or 40GB if you mean that"),
        (
            {"storage": "postgresql://nobody@127.0.0.1:1/x"},
            [],
            "storage is postgresql://***@127.0.0.1:1/x, which cannot",
        ),
        ({"study": "a/b"}, [], "study is 'a/b'"),
    ],
    ids=["resume", "cap", "unit", "storage", "name"],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tune: Tune, write_search: WriteSearch, tmp_path: Path, changes: dict[str, Any], options: list[str], line: str
) -> None:
    result = tune("run", write_search(**changes), *options)
    assert (result.exit_code, result.stdout) == (2, "")
    said = result.stderr.splitlines()[-1]
    assert line.format(runs=tmp_path / "runs") in said
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["mlflow.db"]


def test_a_study_that_exists_is_one_line(tune: Tune, write_search: WriteSearch) -> None:
    file = write_search(search__num_trials=1)
    tune("run", file)
    result = tune("run", file)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert "already; continue it with --resume" in line


def test_a_changed_goal_is_listed_line_by_line(tune: Tune, write_search: WriteSearch) -> None:
    tune("run", write_search(search__num_trials=1))
    result = tune("run", write_search(memory_cap="30MiB", optimizer__name="sgd"), "--resume")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-2:] == ["  optimizer.name: 'adamw' -> 'sgd'", "  memory_cap: '20MiB' -> '30MiB'"]


class Screen:
    """A program on a terminal of its own, as a person has it.

    Args:
        command: For the shell; its streams are the terminal unless it sends them elsewhere.
    """

    def __init__(self, command: str) -> None:
        self._terminal, self._other_end = pty.openpty()
        name = os.ttyname(self._other_end)
        # The leader of a session gets the first terminal that it opens as its own: that is where Ctrl-C goes.
        self._program = subprocess.Popen(
            ["/bin/sh", "-c", f"exec <{name} >{name} 2>{name}; {command}"],
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "140", "LINES": "40"},
        )
        self.text = ""

    def wait_for(self, text: str, *, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.text:
            assert time.monotonic() < deadline, f"{text!r} did not appear:\n{self.text}"
            assert self._read(), f"the program ended without {text!r}:\n{self.text}"

    def press(self, key: bytes) -> None:
        os.write(self._terminal, key)

    def end(self) -> int:
        """Reads on until the program has ended; its exit code."""
        while self._read():
            pass
        os.close(self._terminal)
        os.close(self._other_end)
        return self._program.wait()

    def _read(self) -> bool:
        """Adds what has come within a moment; False once the program has ended and all was read."""
        if not select.select([self._terminal], [], [], 0.2)[0]:
            return self._program.poll() is None
        data = os.read(self._terminal, 65536).decode(errors="replace")
        self.text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data)
        return True


def test_a_terminal_shows_the_search_as_it_goes(write_search: WriteSearch, tmp_path: Path) -> None:
    """Standard error is the terminal, standard output is not, as in `tune run --json search.yaml > results.json`."""
    file = write_search(search__num_trials=4)
    screen = Screen(f"{PROGRAM} --trial-s 0.5 run --json '{file}' > '{tmp_path}/out.json'")
    screen.wait_for("0/4 trials done, 1 running")
    screen.wait_for("running trial 0: none @2x1 (0 s)")
    screen.wait_for("best so far: none within the cap yet")
    screen.wait_for("best so far: trial 1, block @2x1, 25 tokens/s")
    screen.wait_for("Pareto front so far")
    screen.wait_for("at most 9 min 5")
    assert screen.end() == 0
    assert "trial   3  COMPLETED" in screen.text
    data = json.loads((tmp_path / "out.json").read_text())
    assert (data["status"], len(data["trials"])) == ("finished", 4)


def test_ctrl_c_on_a_terminal_ends_the_search_and_keeps_it(tune: Tune, write_search: WriteSearch) -> None:
    file = write_search(search__num_trials=4)
    screen = Screen(f"exec {PROGRAM} --wait-in 2 run '{file}'")
    screen.wait_for("running trial 2: none @1x2")
    screen.press(b"\x03")
    assert screen.end() == 130
    assert "What was measured is kept; continue with --resume." in screen.text
    assert "Traceback" not in screen.text
    resumed = tune("run", file, "--resume", "--json")
    assert resumed.exit_code == 0
    assert len([t for t in json.loads(resumed.stdout)["trials"] if t["status"] == "COMPLETED"]) == 4
