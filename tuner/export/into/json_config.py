"""JSON, edited by the positions of its values; Python's own decoder reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tuner.export.into.config_text import (
    KeyPath,
    Tree,
    UneditableError,
    line_at,
    line_break,
    line_start,
    long_number_error,
    replaced,
)

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class _Member:
    key: str
    key_start: int
    start: int
    end: int


class JsonConfig:
    """One object, without comments."""

    name = "JSON"
    has_null = True

    def read(self, text: str) -> Tree:
        try:
            data = json.loads(text, object_pairs_hook=_once)
        except json.JSONDecodeError as error:
            raise UneditableError(error.lineno, f"is not JSON ({error.msg}); correct it") from error
        except ValueError as error:
            raise long_number_error(text) from error
        if not isinstance(data, dict):
            raise UneditableError(1, "holds no object of keys and values; name the stack's config")
        return data

    def plain(self, value: object) -> object:
        return json.loads(json.dumps(value))

    def line_of(self, text: str, path: KeyPath) -> int:
        return line_at(text, _member(text, path).key_start)

    def set_value(self, text: str, path: KeyPath, value: object, *, after: str | None) -> str:
        members = list(_members(text, _object_start(text, path[:-1])))
        for member in members:
            if member.key == path[-1]:
                return replaced(text, member.start, member.end, json.dumps(value, ensure_ascii=False))
        new = f"{json.dumps(path[-1])}: {json.dumps(value, ensure_ascii=False)}"
        if not members:
            start = _object_start(text, path[:-1]) + 1
            return replaced(text, start, start, new)
        last = next((member for member in members if member.key == after), members[-1])
        start = line_start(text, last.key_start)
        indent = text[start : last.key_start]
        separator = f",{line_break(text)}{indent}" if not indent.strip() and start else ", "
        return replaced(text, last.end, last.end, separator + new)

    def remove(self, text: str, path: KeyPath) -> str:
        members = list(_members(text, _object_start(text, path[:-1])))
        (index,) = (index for index, member in enumerate(members) if member.key == path[-1])
        member = members[index]
        if index + 1 < len(members):
            return replaced(text, member.key_start, members[index + 1].key_start, "")
        start = members[index - 1].end if index else _object_start(text, path[:-1]) + 1
        return replaced(text, start, member.end, "")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UneditableError(None, f"says {twice} twice in one object; keep one of the two")
    return data


def _object_start(text: str, path: KeyPath) -> int:
    return _member(text, path).start if path else _after_space(text, 0)


def _member(text: str, path: KeyPath) -> _Member:
    start = _after_space(text, 0)
    member: _Member | None = None
    for key in path:
        member = next(member for member in _members(text, start) if member.key == key)
        start = member.start
    assert member is not None, "a path has a key"
    return member


def _members(text: str, start: int) -> Iterator[_Member]:
    """The members of the object that starts here; the text has been read as JSON before."""
    index = _after_space(text, start + 1)
    while text[index] != "}":
        key, key_end = _DECODER.raw_decode(text, index)
        value_start = _after_space(text, _after_space(text, key_end) + 1)
        _, value_end = _DECODER.raw_decode(text, value_start)
        yield _Member(key, index, value_start, value_end)
        index = _after_space(text, value_end)
        if text[index] == ",":
            index = _after_space(text, index + 1)


def _after_space(text: str, index: int) -> int:
    match = _SPACE.match(text, index)
    assert match is not None, "no space matches as well"
    return match.end()
