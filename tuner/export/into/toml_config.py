"""TOML, edited by the positions of its statements; the standard reader judges what comes out."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tuner.export.into.config_text import (
    KeyPath,
    Tree,
    UneditableError,
    line_at,
    line_break,
    line_end,
    line_start,
    long_number_error,
    replaced,
)
from tuner.export.toml_text import dump_toml, toml_value

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KEY_PART = re.compile(r"""[ \t]*(?:([A-Za-z0-9_-]+)|"((?:[^"\\\n]|\\.)*)"|'([^'\n]*)')[ \t]*""")
#: What can stand in a value beside nested brackets: the four kinds of strings, comments, and single characters.
_VALUE_PART = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*|.', re.DOTALL
)
#: Where the reader found its error.
_PLACE_IN_ERROR = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)")


@dataclass(frozen=True)
class _Statement:
    """A header, or a key with its value; positions of the header or of key and value."""

    path: KeyPath
    start: int
    value_start: int | None
    end: int


class TomlConfig:
    """Tables with headers and keys; values inside inline tables cannot be edited."""

    name = "TOML"
    has_null = False

    def read(self, text: str) -> Tree:
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise _not_toml(text, str(error)) from error
        except ValueError as error:
            raise long_number_error(text) from error

    def plain(self, value: object) -> object:
        return list(value) if isinstance(value, tuple) else value

    def line_of(self, text: str, path: KeyPath) -> int:
        return line_at(text, next(s.start for s in _statements(text) if s.path[: len(path)] == path))

    def set_value(self, text: str, path: KeyPath, value: object, *, after: str | None) -> str:
        for statement in _statements(text):
            if statement.path == path and statement.value_start is not None:
                if isinstance(value, dict):
                    given = text[statement.value_start : statement.end].split("\n")[0].strip()
                    raise _no_table(text, path, statement, f"is {given}")
                return replaced(text, statement.value_start, statement.end, _like(text, statement, value))
            if statement.path == (*path, "[]"):
                raise _no_table(text, path, statement, "is an array of tables")
        if isinstance(value, dict):
            gap = line_break(text) * (1 if text.endswith("\n") or not text else 2)
            table = dump_toml({".".join(path): value}).lstrip("\n").rstrip("\n").replace("\n", line_break(text))
            return text + gap + table + (line_break(text) if text.endswith("\n") else "")
        return _added(text, path, value, after)

    def remove(self, text: str, path: KeyPath) -> str:
        found = [s for s in _statements(text) if s.path == path and s.value_start is not None]
        if not found:
            line = self.line_of(text, path)
            raise UneditableError(line, f"{'.'.join(path)} is a table of its own; remove it by hand")
        (statement,) = found
        start, end = line_start(text, statement.start), line_end(text, statement.end)
        end = text.find("\n", end) + 1 if "\n" in text[end:] else len(text)
        return replaced(text, start, end, "")


def _not_toml(text: str, problem: str) -> UneditableError:
    found = _PLACE_IN_ERROR.search(problem)
    if found is None:
        return UneditableError(None, f"is not TOML ({problem}); correct it")
    reason = problem[: found.start()] + problem[found.end() :]
    if found.group(1) is None:
        return UneditableError(
            line_at(text, len(text.rstrip())), f"is not TOML ({reason} at the end of the file); correct it"
        )
    return UneditableError(int(found.group(1)), f"is not TOML ({reason} at column {found.group(2)}); correct it")


def _no_table(text: str, path: KeyPath, statement: _Statement, what: str) -> UneditableError:
    name = ".".join(path)
    return UneditableError(line_at(text, statement.start), f"{name} {what}, not a table; write it as [{name}]")


def _like(text: str, statement: _Statement, value: object) -> str:
    """The value as the old one was written, where both are text."""
    quoted = toml_value(value)
    assert statement.value_start is not None, "only keys are asked about"
    is_literal = text[statement.value_start] == "'" and isinstance(value, str) and value.isprintable()
    return f"'{value}'" if is_literal and "'" not in str(value) else quoted


def _added(text: str, path: KeyPath, value: object, after: str | None) -> str:
    """The key below another one of its table, indented as that one is."""
    statements = list(_statements(text))
    table = path[:-1]
    siblings = [s for s in statements if s.value_start is not None and s.path[:-1] == table]
    headers = [s for s in statements if s.value_start is None and s.path == table]
    if siblings:
        last = next((s for s in siblings if s.path[-1] == after), siblings[-1])
        start = line_start(text, last.start)
        key = ".".join([*_dotted_key(text, last)[:-1], path[-1]])
    elif headers:
        last, start, key = headers[-1], line_start(text, headers[-1].start), path[-1]
    else:
        raise UneditableError(None, f"{'.'.join(table)} is an inline table or spread over others; write it as a table")
    indent = text[start : last.start]
    end = line_end(text, last.end)
    return replaced(text, end, end, f"{line_break(text)}{indent}{key} = {toml_value(value)}")


def _dotted_key(text: str, statement: _Statement) -> list[str]:
    """The key as the line writes it, which below a header is the end of its path."""
    parts, _ = _key(text, statement.start)
    return parts


def _statements(text: str) -> Iterator[_Statement]:
    """Headers and keys in the order of the text, which has been read as TOML before."""
    table: KeyPath = ()
    index = 0
    while index < len(text):
        char = text[index]
        if char in " \t\r\n":
            index += 1
        elif char == "#":
            index = line_end(text, index)
        elif char == "[":
            start = index
            parts, index = _key(text, index + (2 if text.startswith("[[", index) else 1))
            is_array = text.startswith("[[", start)
            index += 2 if is_array else 1
            # What stands in an array of tables has no path of its own and is never edited.
            table = (*parts, "[]") if is_array else tuple(parts)
            yield _Statement(table, start, None, index)
        else:
            start = index
            parts, index = _key(text, index)
            value_start = index + 1 + len(text[index + 1 :]) - len(text[index + 1 :].lstrip(" \t"))
            index = _value_end(text, value_start)
            yield _Statement((*table, *parts), start, value_start, index)


def _key(text: str, index: int) -> tuple[list[str], int]:
    """The parts of a dotted key, and where what follows it stands."""
    parts: list[str] = []
    while True:
        match = _KEY_PART.match(text, index)
        assert match is not None, "a key starts here"
        parts.append(next(group for group in match.groups() if group is not None))
        index = match.end()
        if text[index] != ".":
            return parts, index
        index += 1


def _value_end(text: str, start: int) -> int:
    depth, end = 0, start
    for match in _VALUE_PART.finditer(text, start):
        part = match.group()
        if depth == 0 and part[0] in "\r\n#":
            break
        depth += (part in ("[", "{")) - (part in ("]", "}"))
        if part not in " \t\r\n" and part[0] != "#":
            end = match.end()
    return end
