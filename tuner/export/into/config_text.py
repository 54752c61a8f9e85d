"""The seam of formats that `--into` can edit: text in, text out, one key at a time, nothing else touched."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Protocol, TypeAlias

KeyPath: TypeAlias = tuple[str, ...]
#: Mappings by key; every other value is whatever the format makes of it, equal where the values are.
Tree: TypeAlias = Mapping[str, object]


class UneditableError(Exception):
    """The text cannot be edited without a risk to something else.

    Attributes:
        line: Counts from 1; None where the whole file is meant.
        text: What stands there and what to do, without the file's name.
    """

    def __init__(self, line: int | None, text: str) -> None:
        super().__init__(text)
        self.line = line
        self.text = text


class ConfigFormat(Protocol):
    """A syntax of keyed configs. Positions are never kept between calls: each call reads the text anew."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def has_null(self) -> bool:
        """Whether a key can be set to nothing; where not, it is removed instead."""

    def read(self, text: str) -> Tree:
        """What the text says.

        Raises:
            UneditableError: It is not this format, or says a key twice.
        """

    def plain(self, value: object) -> object:
        """A value of settings as `read` would give it back."""

    def line_of(self, text: str, path: KeyPath) -> int:
        """Line of a key that is there."""

    def set_value(self, text: str, path: KeyPath, value: object, *, after: str | None) -> str:
        """The text with the key set: its value replaced, or the key added.

        All of the path but its last key leads through mappings that are there.

        Args:
            after: A key beside it, below which it is added; None adds it below the last one.

        Raises:
            UneditableError: What stands there cannot be replaced alone.
        """

    def remove(self, text: str, path: KeyPath) -> str:
        """The text without the key, which is there.

        Raises:
            UneditableError: It cannot be removed alone.
        """


def long_number_error(text: str) -> UneditableError:
    """What to say where a reader met a whole number that Python refuses to convert for its length."""
    most = sys.get_int_max_str_digits() if hasattr(sys, "get_int_max_str_digits") else 0
    found = re.search(rf"[0-9][0-9_]{{{most},}}", text) if most else None
    line = None if found is None else line_at(text, found.start())
    return UneditableError(line, "has a number of more digits than can be read; shorten it")


def line_at(text: str, index: int) -> int:
    """Line of a position in the text, from 1."""
    return text.count("\n", 0, index) + 1


def line_end(text: str, index: int) -> int:
    """Where the line of a position ends, before its line break."""
    end = text.find("\n", index)
    end = len(text) if end < 0 else end
    return end - 1 if end > index and text[end - 1 : end] == "\r" else end


def line_start(text: str, index: int) -> int:
    """Where the line of a position begins."""
    return text.rfind("\n", 0, index) + 1


def line_break(text: str) -> str:
    """The line break that the text uses."""
    return "\r\n" if "\r\n" in text else "\n"


def replaced(text: str, start: int, end: int, by: str) -> str:
    """The text with one span replaced."""
    return text[:start] + by + text[end:]
