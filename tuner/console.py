"""The two output streams, and how a command ends: results to stdout, everything else to stderr, one line per error."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterable
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from search_spaces.visible_text import visible
from tuner.interrupts import Interrupts
from tuner.user_error import FailedError, UserError

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_NOTHING_FEASIBLE = 3
EXIT_INTERRUPTED = 130

#: Width of tables where there is no terminal that has one.
_PLAIN_WIDTH = 160


class PlainConsole(Console):
    """A console on which names, errors and files of others are text: no markup, and no codes that a terminal obeys."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


err_console = PlainConsole(stderr=True)
out_console = PlainConsole()


class _ConsoleHandler(logging.Handler):
    """Log lines through the console, so that they stand above a live view instead of tearing it."""

    def emit(self, record: logging.LogRecord) -> None:
        err_console.print(Text(self.format(record)), soft_wrap=True)


def set_up_logging(*, verbose: bool) -> None:
    """Ours from INFO on, other libraries' from WARNING on; everything goes to standard error."""
    handler = _ConsoleHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("tuner", "runners", "mlflow_config"):
        logging.getLogger(name).setLevel(logging.DEBUG if verbose else logging.INFO)


def show(renderable: RenderableType) -> None:
    """Prints a result."""
    if not out_console.is_terminal:
        out_console.width = _PLAIN_WIDTH
    out_console.print(renderable)


def show_text(text: str) -> None:
    """Prints text as it is, without wrapping, for files and for programs."""
    typer.echo(visible(text), nl=not text.endswith("\n"))


def end_with(command: Callable[[], int]) -> None:
    """Runs a command and ends the program with its exit code; a user's mistake is one line each, without a trace.

    SIGTERM and the end of the terminal end a command as Ctrl-C does.
    """
    try:
        with Interrupts().handled():
            code = command()
    except UserError as error:
        for line in error.lines:
            err_console.print(Text(line), soft_wrap=True)
        code = EXIT_FAILED if isinstance(error, FailedError) else EXIT_BAD_INPUT
    except KeyboardInterrupt:
        err_console.print("interrupted")
        code = EXIT_INTERRUPTED
    except Exception as error:
        message = _users_line(error)
        if message is None:
            raise
        err_console.print(Text(message), soft_wrap=True)
        code = EXIT_BAD_INPUT
    raise typer.Exit(code)


def _users_line(error: Exception) -> str | None:
    """The line of the other rooms' errors that are meant for the user; None for what is a bug."""
    # Imported only when something went wrong: `tune --help` must not wait for them.
    from mlflow_config.errors import TrackingError
    from runners.base import RunnerError
    from search_spaces.policy import PolicyError
    from search_spaces.yaml_words import quoted

    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"{quoted(str(error.filename))} is too long for the name of a file or folder; write a shorter one"
    return str(error) if isinstance(error, TrackingError | RunnerError | PolicyError) else None
