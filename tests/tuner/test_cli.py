from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import Result
from simulation import results_of, trial

from tuner import cli

Tune = Callable[..., Result]
COMMANDS = (
    *("run", "check", "plan", "verify", "timeline", "show", "compare", "export", "ui", "schema"),
    *("submit", "list", "status", "logs", "stop"),
)
HEAVY = ("torch", "ray", "mlflow", "optuna", "transformers", "plotly", "pandas", "sqlalchemy")


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )


def test_the_commands_are_these() -> None:
    registered = [command for command in cli.app.registered_commands if command.callback]
    assert {command.name or getattr(command.callback, "__name__", "") for command in registered} == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(tune: Tune, command: str) -> None:
    result = tune(command, "--help")
    assert result.exit_code == 0
    assert f"Usage: tune {command} " in result.stdout
    assert result.stderr == ""


def test_help_loads_nothing_heavy() -> None:
    """All of them in one process, so that Python itself is started once."""
    program = (
        "import json, sys, time\n"
        "start = time.monotonic()\n"
        "from tuner.cli import app\n"
        f"for command in {['', *COMMANDS]}:\n"
        "    try:\n"
        "        app([*([command] if command else []), '--help'])\n"
        "    except SystemExit as ended:\n"
        "        assert ended.code == 0, command\n"
        f"loaded = [name for name in {HEAVY} if name in sys.modules]\n"
        "print(json.dumps([loaded, time.monotonic() - start]), file=sys.stderr)"
    )
    ended = python("-c", program)
    loaded, seconds = json.loads(ended.stderr.splitlines()[-1])
    assert loaded == []
    assert seconds < 2.0


def test_help_is_quick() -> None:
    # The fastest of a few: other programs on this machine are not what is measured.
    times_s = []
    for _ in range(3):
        start = time.monotonic()
        assert python("-m", "tuner", "--help").returncode == 0
        times_s.append(time.monotonic() - start)
    assert min(times_s) < 1.5


class _Loading(ModuleType):
    """A module that takes so long to load that somebody loses patience."""

    def __init__(self, name: str, number: signal.Signals) -> None:
        super().__init__(name)
        self._number = number

    def __getattr__(self, name: str) -> object:
        if name == "schema_command":
            signal.raise_signal(self._number)
        raise AttributeError(name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_command_is_still_loaded_interrupts_it(
    tune: Tune, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setitem(sys.modules, "tuner.commands.schema", _Loading("tuner.commands.schema", number))
    result = tune("schema")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


def test_the_module_is_the_program(tmp_path: Path) -> None:
    ended = python("-m", "tuner", "show", "nothing", "--output-dir", str(tmp_path))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("STUDY is 'nothing', which is neither a study in ")
    assert "Traceback" not in ended.stderr


_INTERRUPTED = """
import sys, types

def main():
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        sys.exit(130)

sys.modules["tuner.cli"] = types.ModuleType("tuner.cli")
sys.modules["tuner.cli"].main = main
"""


def test_the_module_ends_with_the_programs_exit_code_wherever_it_was_interrupted(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(_INTERRUPTED)
    path = os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])
    ended = subprocess.run([sys.executable, "-m", "tuner"], env={**os.environ, "PYTHONPATH": path}, check=False)
    assert ended.returncode == 130


def test_without_a_command_the_help_is_shown(tune: Tune) -> None:
    result = tune()
    assert result.exit_code in (0, 2)  # releases of the parser differ on whether that is a mistake
    assert all(f" {command} " in result.output for command in COMMANDS)


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["rnu"], "tune: No such command 'rnu'. Did you mean 'run'?; `tune --help` says what it takes"),
        (["run"], "tune run: Missing argument 'SEARCH.YAML'; `tune run --help` says what it takes"),
        (["run", "a.yaml", "--resum"], "tune run: No such option: --resum"),
        (["run", "a.yaml", "b.yaml"], "tune run: Got unexpected extra argument(s) (b.yaml); `tune run --help`"),
        (["verify", "a.yaml"], "tune verify: Missing option '--policy'"),
        (["verify", "a.yaml", "--policy"], "tune verify: Option '--policy' requires an argument"),
        (["export", "study"], "tune export: Missing option '--format'"),
        (["export", "study", "--format", "policy", "--trial", "first"], "tune export: --trial is 'first'; "),
        (["export", "study", "--format", "policy", "--trial", "1e3"], "tune export: --trial is '1e3'; "),
        (["ui", "--port", "0"], "tune ui: --port is '0'; "),
        (["plan", "a.yaml", "--shard", "x\n\x1b[2J"], r"tune plan: --shard is 'x\n\x1b[2J'; "),
        (["timeline", "a.yaml", "--micro-batch-size", "-1"], "tune timeline: --micro-batch-size is '-1'; "),
        (
            ["export", "study", "--format", "policy", "--trial", "1", "--trial", "2"],
            "tune export: --trial is given 2 times, and only one of them can hold; give it once; `tune export --help`",
        ),
        (
            ["export", "study", "--format", "policy", "-o", "a", "--output", "b"],
            "tune export: --output is given 2 times",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_bad_input(tune: Tune, arguments: list[str], text: str) -> None:
    result = tune(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(text)
    assert line.endswith("--help` says what it takes")


@pytest.mark.parametrize("command", ["run", "check", "verify"])
@pytest.mark.parametrize("kind", ["missing", "directory", "binary", "empty", "broken"])
def test_a_search_file_that_cannot_be_read_is_one_line(tune: Tune, tmp_path: Path, command: str, kind: str) -> None:
    file = tmp_path / "search.yaml"
    match kind:
        case "directory":
            file.mkdir()
        case "binary":
            file.write_bytes(b"\x00\xff\xfe")
        case "empty":
            file.write_text("")
        case "broken":
            file.write_text("model: {factory: [}\n")
    before = sorted(tmp_path.iterdir())
    options = ["--policy", "policy.yaml"] if command == "verify" else []
    result = tune(command, file, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith(str(file))
    assert sorted(tmp_path.iterdir()) == before


def test_everything_wrong_with_a_search_file_is_said_at_once(tune: Tune, tmp_path: Path) -> None:
    file = tmp_path / "search.yaml"
    file.write_text(
        "modle: {factory: a.py:b}\nbatch: {global_batch_size: 0, micro_batch_sizes: [3]}\nmemory_cap: 40\n"
        "search: {num_trials: many, sampler: tpee}\n"
    )
    result = tune("run", file)
    assert (result.exit_code, result.stdout) == (2, "")
    lines = result.stderr.splitlines()
    assert len(lines) >= 6
    assert all(line.startswith(f"{file}:") for line in lines[:-1])


def test_a_terminal_without_unicode_still_shows_tables(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "results.json").write_text(results_of(trial(0), trial(1, "block")).to_json())
    ended = python("-m", "tuner", "show", str(folder), PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "block @2x1" in ended.stdout
    ended.stdout.encode("ascii")
