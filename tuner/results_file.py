"""Reading results.json, also one that somebody has edited."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from search_spaces.yaml_words import one_line, place_name
from tuner.results import ModelRecord, StudyResults
from tuner.user_error import UserError

_RecordT = TypeVar("_RecordT", bound=BaseModel)

#: Of a file; a trial with 12 regions takes less than 4,000 of them.
_MAX_FILE_BYTES = 1 << 28


class ResultsError(UserError):
    """A results file that cannot be read; the message is one line for the user."""


def read_results(path: Path) -> StudyResults:
    """Reads results.json.

    Raises:
        ResultsError: There is none, or it is not one; the message says what to do.
    """
    return _read(path, StudyResults)


def read_model(path: Path) -> ModelRecord:
    """Reads what results.json says of the model, and looks at none of its trials, which may be thousands.

    Raises:
        ResultsError: As of `read_results`.
    """
    return _read(path, _OfTheModel).model


class _OfTheModel(BaseModel):
    model_config = ConfigDict(extra="ignore")

    model: ModelRecord


def _read(path: Path, record: type[_RecordT]) -> _RecordT:
    try:
        return record.model_validate_json(_read_bytes(path))
    except FileNotFoundError as error:
        raise ResultsError(f"{path} does not exist; a study writes it, so name one that has run") from error
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ELOOP):
            raise ResultsError(f"{path} is not a file ({error.strerror}); name a study that has run") from error
        raise ResultsError(f"{path} cannot be read: {error.strerror}; name a file that can be read") from error
    except ValidationError as error:
        raise _not_ours(path, error) from error


def _read_bytes(path: Path) -> bytes:
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is a device, a pipe or a socket")
    with path.open("rb") as file:
        content = file.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {_MAX_FILE_BYTES} bytes, the most that is read")
    return content


def _not_ours(path: Path, error: ValidationError) -> ResultsError:
    first = error.errors()[0]
    where = ".".join(map(place_name, first["loc"]))
    reason = " ".join(first["msg"].removeprefix("Value error, ").split())
    # Of something missing pydantic shows what is around it, and our own sentences say what was read.
    read = "" if first["type"] in ("missing", "value_error", "json_invalid") else f", read {first['input']!r:.60}"
    text = one_line(f"{where}: {reason}{read}" if where else f"{reason}{read}")
    return ResultsError(f"{path} is not a results file of this release ({text}); run the study again")
