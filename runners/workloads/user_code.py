"""The user's own code: where it went wrong, told in one line. Knows nothing of what the code is for."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runners.base import WorkloadError
from runners.devices.cpu import CpuDevice

#: Longer texts of an error are cut; the whole of it is in the traceback.
_MAX_ERROR_CHARACTERS = 500

_OUR_FOLDER = str(Path(__file__).resolve().parents[1])


@contextmanager
def user_code(subject: str) -> Iterator[None]:
    """Turns an error of the user's code into one line that starts with the subject and names file, line and error.

    Out-of-memory errors pass unchanged: they are an outcome of a trial, not a mistake of the user.

    Raises:
        WorkloadError: Anything else went wrong, a ``sys.exit`` included.
    """
    try:
        yield
    except WorkloadError:
        raise
    except (Exception, SystemExit) as error:
        if CpuDevice().is_out_of_memory(error):
            raise
        raise WorkloadError(f"{subject} {failure_in_one_line(error)}") from error


def failure_in_one_line(error: BaseException) -> str:
    """``failed at FILE:LINE: ErrorType: text``, where the line is the last one of the user's own code."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"failed at {error.filename}:{error.lineno}: {type(error).__name__}: {_one_line(error.msg)}"
    place = user_line(error)
    text = _one_line(str(error))
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"failed at {place}: {what}" if place else f"failed: {what}"


def user_line(error: BaseException) -> str | None:
    """``FILE:LINE`` of the last line of the user's own code that the error passed through; None where there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_library(frame.filename)]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else None


def _is_library(filename: str) -> bool:
    folders = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    return filename.startswith(("<", _OUR_FOLDER, *folders))


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_ERROR_CHARACTERS else line[:_MAX_ERROR_CHARACTERS] + " ..."
