from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import typer
from rich.table import Table
from rich.text import Text

from mlflow_config.errors import TrackingError
from runners.base import RunnerError, WorkloadError
from search_spaces.policy import PolicyError
from tuner.console import PlainConsole, end_with, err_console, set_up_logging, show, show_text
from tuner.user_error import FailedError, UserError

Capture = pytest.CaptureFixture[str]


def exit_code(command: Callable[[], int]) -> int:
    with pytest.raises(typer.Exit, match=r"^\d*$") as ended:
        end_with(command)
    code: int = ended.value.exit_code
    return code


def failing(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize("code", [0, 1, 3, 130])
def test_a_command_ends_with_its_own_code(code: int) -> None:
    assert exit_code(lambda: code) == code


def test_a_users_mistakes_are_one_line_each(capsys: Capture) -> None:
    assert exit_code(failing(UserError(["search.yaml:1: one", "search.yaml:2: two"]))) == 2
    assert capsys.readouterr() == ("", "search.yaml:1: one\nsearch.yaml:2: two\n")


def test_a_command_that_failed_is_told_from_a_mistake(capsys: Capture) -> None:
    assert exit_code(failing(FailedError("the server is gone"))) == 1
    assert capsys.readouterr() == ("", "the server is gone\n")


@pytest.mark.parametrize("kind", [TrackingError, RunnerError, WorkloadError, PolicyError])
def test_errors_of_other_rooms_that_are_meant_for_the_user_are_one_line(
    kind: Callable[[str], Exception], capsys: Capture
) -> None:
    assert exit_code(failing(kind("nobody answers at 10.0.0.1"))) == 2
    assert capsys.readouterr() == ("", "nobody answers at 10.0.0.1\n")


def test_a_name_that_is_too_long_is_one_line(capsys: Capture) -> None:
    assert exit_code(lambda: os.stat("x" * 5000).st_mode) == 2
    assert capsys.readouterr().err == (
        f"'{'x' * 57}...' is too long for the name of a file or folder; write a shorter one\n"
    )


def test_lines_are_neither_wrapped_nor_read_as_markup(capsys: Capture) -> None:
    line = "[bold]shapes[/bold] [2, 3] differ " * 30
    exit_code(failing(UserError(line)))
    assert capsys.readouterr().err == f"{line}\n"


HOSTILE = "[/]\x1b[2J\x1b]0;owned\x07 :smile: \x9b31m\u202e"


def test_no_code_of_somebody_elses_reaches_the_terminal(capsys: Capture) -> None:
    table = Table("policy", title=HOSTILE)
    table.add_row(HOSTILE)
    show(table)
    show_text(HOSTILE)
    err_console.print(HOSTILE, soft_wrap=True)
    exit_code(failing(UserError(HOSTILE)))
    output, errors = capsys.readouterr()
    for stream in (output, errors):
        assert not set("\x1b\x07\x9b\u202e") & set(stream)
        assert "[/]" in stream, "it is no markup either"
        assert ":smile:" in stream


def test_our_own_colors_do_reach_a_terminal() -> None:
    console = PlainConsole(file=io.StringIO(), force_terminal=True, color_system="standard", width=40)
    console.print(Text("done\x1b[2J", style="red"))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == "\x1b[31mdone\\u001b[2J\x1b[0m\n"


def test_an_interrupt_is_no_error(capsys: Capture) -> None:
    assert exit_code(failing(KeyboardInterrupt())) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_a_bug_keeps_its_trace() -> None:
    with pytest.raises(ZeroDivisionError, match="a bug"):
        end_with(failing(ZeroDivisionError("a bug")))


def test_results_go_to_standard_output(capsys: Capture) -> None:
    table = Table("policy")
    table.add_row("x" * 150)
    show(table)
    show_text("a line")
    show_text("a file\n")
    output, errors = capsys.readouterr()
    assert "x" * 150 in output, "a pipe has room for a wide table"
    assert output.endswith("a line\na file\n")
    assert errors == ""


@pytest.mark.usefixtures("_logging_as_before")
@pytest.mark.parametrize("verbose", [False, True])
def test_logs_go_to_standard_error(capsys: Capture, verbose: bool) -> None:
    set_up_logging(verbose=verbose)
    for name in ("tuner.x", "runners.x", "mlflow_config.x", "others.x"):
        for level in (logging.DEBUG, logging.INFO, logging.WARNING):
            logging.getLogger(name).log(level, "%s says %s", name, logging.getLevelName(level))
    output, errors = capsys.readouterr()
    assert output == ""
    ours = ["DEBUG", "INFO", "WARNING"] if verbose else ["INFO", "WARNING"]
    expected = [f"{name}.x says {level}" for name in ("tuner", "runners", "mlflow_config") for level in ours]
    assert errors.splitlines() == [*expected, "others.x says WARNING"]


def test_a_reader_who_leaves_early_is_no_error() -> None:
    program = (
        "from tuner.console import PlainConsole, end_with, err_console, show_text\n"
        "end_with(lambda: [show_text('x' * 100) for _ in range(9999)] and 0)"
    )
    shell = f'"{sys.executable}" -c "$0" | head -n 1'
    ended = subprocess.run(["/bin/sh", "-c", shell, program], capture_output=True, text=True, check=False, timeout=30)
    assert ended.stdout == "x" * 100 + "\n"
