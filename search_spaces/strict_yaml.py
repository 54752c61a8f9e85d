"""YAML text that may come from anyone, as plain data with the line of every entry.

Nothing is read as something else than it looks: where readers of YAML disagree about a word, it stays text or is
refused. Knows nothing of what the data mean.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from search_spaces.yaml_nodes import KeyPath, Node, UnreadableError, YamlProblem, code_point, dotted, read_nodes

MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class YamlDocument:
    """Plain data (None, bool, int, float, str, list, dict with text keys) and where they stand.

    Attributes:
        lines: Line of each entry by its path, for example ``("batch", "micro_batch_sizes", 1)``.
        disputed: Entries that are text here, and what readers of YAML 1.1 take each for (``on``: true or false).
        written: Entries that are no text here, and the word each was written as (``16e9``, which is 16000000000.0).
    """

    data: Any
    lines: Mapping[KeyPath, int]
    disputed: Mapping[KeyPath, str] = field(default_factory=dict)
    written: Mapping[KeyPath, str] = field(default_factory=dict)

    def line_of(self, path: KeyPath) -> int:
        """Line of an entry, or of the nearest entry around it where it is absent."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines[path]


class StrictYamlError(ValueError):
    """A text that is not plain, unmistakable YAML; the message is one line about the first problem.

    Attributes:
        where: The file as the user wrote it.
        line: Line of the first problem; None where the whole file is meant.
        problems: All that was found, in the order of lines.
        document: What could be read in spite of the problems; None where nothing could.
    """

    def __init__(self, where: str, problems: tuple[YamlProblem, ...], *, document: YamlDocument | None = None) -> None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(problems[0].located(where) + more)
        self.where = where
        self.line = problems[0].line
        self.problems = problems
        self.document = document


def read_yaml(path: str | os.PathLike[str]) -> YamlDocument:
    """The one document in a file.

    Raises:
        StrictYamlError: The file cannot be read, or is not plain, unmistakable YAML.
    """
    where = os.fspath(path)
    try:
        content = _read_bytes(where)
    except OSError as error:
        problem = YamlProblem(None, f"cannot be read ({error.strerror}); name a file that can")
        raise StrictYamlError(where, (problem,)) from error
    return parse_yaml(content, where=where)


def _read_bytes(path: str) -> bytes:
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(0, "it is not a file")
    with open(path, "rb") as file:
        return file.read(MAX_FILE_BYTES + 1)


def parse_yaml(content: bytes | str, *, where: str) -> YamlDocument:
    """The one document in a text; empty text is a document that holds None.

    Args:
        content: Bytes are read as UTF-8, with or without a byte order mark.
        where: Stands before the line number in messages, usually the file as the user wrote it.

    Raises:
        StrictYamlError: The text is not plain, unmistakable YAML.
    """
    try:
        root, problems = read_nodes(_decoded(content))
    except UnreadableError as error:
        raise StrictYamlError(where, (error.problem,)) from error
    plain = _PlainData(lines={(): root.line}, problems=problems)
    document = YamlDocument(plain.convert(root, ()), plain.lines, plain.disputed, plain.written)
    if problems:
        problems.sort(key=lambda problem: problem.line or 0)
        raise StrictYamlError(where, tuple(problems), document=document)
    return document


def _decoded(content: bytes | str) -> str:
    if len(content) > MAX_FILE_BYTES:
        raise UnreadableError(None, f"is larger than {MAX_FILE_BYTES} bytes, the most that is read; shorten it")
    if isinstance(content, bytes):
        content = _from_utf8(content)
    unprintable = yaml.reader.Reader.NON_PRINTABLE.search(content)
    if unprintable:
        line = content.count("\n", 0, unprintable.start()) + 1
        name = code_point(unprintable.group())
        raise UnreadableError(line, f"holds the character {name}, which is allowed nowhere in YAML; remove it")
    return content


def _from_utf8(content: bytes) -> str:
    if b"\0" in content:
        raise UnreadableError(None, "holds NUL bytes, so it is binary or not UTF-8; save it as UTF-8 text")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnreadableError(line, "holds bytes that are not UTF-8; save it as UTF-8 text") from error


@dataclass
class _PlainData:
    """Turns nodes into plain data; each alias becomes a copy of its own, so that every path has its line."""

    lines: dict[KeyPath, int]
    problems: list[YamlProblem]
    disputed: dict[KeyPath, str] = field(default_factory=dict)
    written: dict[KeyPath, str] = field(default_factory=dict)

    def convert(self, node: Node, path: KeyPath) -> Any:
        if node.problem is not None:
            text = f"{dotted(path) or 'the document'} {node.problem}"
            self.problems.append(YamlProblem(self.lines[path], text, unread=path))
        if node.disputed is not None:
            self.disputed[path] = node.disputed
        if node.written is not None:
            self.written[path] = node.written
        if isinstance(node.value, list):
            return [self._entry(item.line, item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node.value, dict):
            return {key: self._entry(entry.line, entry.node, (*path, key)) for key, entry in node.value.items()}
        return node.value

    def _entry(self, line: int, node: Node, path: KeyPath) -> Any:
        self.lines[path] = line
        return self.convert(node, path)
