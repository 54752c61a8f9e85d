"""YAML text as a tree of nodes that know their lines, within fixed limits on depth and size."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

from search_spaces.yaml_words import Word, one_line, quoted, read_word

KeyPath: TypeAlias = tuple[str | int, ...]

MAX_DEPTH = 50
#: Characters of a message: what was read may be repeated in it.
MAX_MESSAGE = 1000
#: Entries with every alias written out: a few lines of nested aliases can stand for billions.
MAX_ENTRIES = 100_000


@dataclass(frozen=True)
class YamlProblem:
    """One thing that is wrong with a text.

    Attributes:
        line: Counts from 1; None where the whole file is meant.
        text: What was read, what is allowed and what to do, in one line.
        unread: The entry whose value could not be read; the document holds its text instead.
    """

    line: int | None
    text: str
    unread: KeyPath | None = None

    def located(self, where: str) -> str:
        """``search.yaml:12: ...``, always one line, and one that can be read."""
        text = self.text if len(self.text) <= MAX_MESSAGE else f"{self.text[: MAX_MESSAGE - 3]}..."
        return one_line(f"{where}: {text}" if self.line is None else f"{where}:{self.line}: {text}")


class UnreadableError(Exception):
    """Reading cannot go on after this problem."""

    def __init__(self, line: int | None, text: str) -> None:
        super().__init__(text)
        self.problem = YamlProblem(line, text)


@dataclass
class Node:
    """One value of the text before it becomes plain data.

    Attributes:
        num_entries: Entries in it, aliases written out.
        height: Levels of lists and mappings in it; 0 for a scalar.
        problem: Why the value is refused, though the text can be read on.
        disputed: What other readers take this text for; None where they agree.
        written: The word that a number, true, false or null was written as; None for all else.
    """

    line: int
    value: Any
    num_entries: int = 1
    height: int = 0
    problem: str | None = None
    disputed: str | None = None
    written: str | None = None

    def add(self, child: Node) -> None:
        self.num_entries += child.num_entries
        self.height = max(self.height, child.height + 1)


@dataclass(frozen=True)
class Entry:
    """The value of one key, with the line of the key."""

    line: int
    node: Node


def read_nodes(text: str) -> tuple[Node, list[YamlProblem]]:
    """The root of the one document, and what is wrong in it although it could be read on.

    Raises:
        UnreadableError: The text is no YAML, holds several documents or passes a limit.
    """
    reader = _Reader(text)
    return reader.document(), reader.problems


class _Reader:
    """Turns the parser's events into nodes, never more than the limits allow."""

    def __init__(self, text: str) -> None:
        self.problems: list[YamlProblem] = []
        self._text = text
        self._parser: Any = yaml.SafeLoader(text)
        self._anchors: dict[str, Node | None] = {}
        self._num_entries = 0

    def document(self) -> Node:
        self._next()
        if isinstance(self._next(), yaml.StreamEndEvent):
            return Node(1, None)
        root = self._node(self._next(), ())
        self._next()
        event = self._next()
        if not isinstance(event, yaml.StreamEndEvent):
            raise UnreadableError(_line(event), "a second document starts here; keep one document in the file")
        return root

    def _next(self) -> Any:
        try:
            return self._parser.get_event()
        except yaml.MarkedYAMLError as error:
            raise self._not_yaml(error) from error
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            # The parser lets Python's own errors through, for example for the escape "\UFFFFFFFF".
            line = self._parser.line + 1
            raise UnreadableError(line, f"is not valid YAML ({_one_line(str(error))}); correct it") from error

    def _not_yaml(self, error: yaml.MarkedYAMLError) -> UnreadableError:
        mark = error.problem_mark or error.context_mark
        assert mark is not None, "the scanner and the parser mark every error"
        if self._text[mark.index : mark.index + 1] == "\t":
            return UnreadableError(mark.line + 1, "a tab stands where YAML allows only spaces; write spaces instead")
        problem = error.problem or ""
        if error.context and error.context_mark:
            problem = f"{error.context} that starts on line {error.context_mark.line + 1}, {problem}"
        advice = "check indentation, quotes and brackets here and just above"
        return UnreadableError(mark.line + 1, f"is not valid YAML ({_one_line(problem)}); {advice}")

    def _node(self, event: Any, path: KeyPath) -> Node:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        self._count(1, event)
        if isinstance(event, yaml.ScalarEvent):
            node = _scalar(event)
        else:
            self._check_depth(len(path) + 1, event)
            is_list = isinstance(event, yaml.SequenceStartEvent)
            node = self._sequence(event, path) if is_list else self._mapping(event, path)
            if event.tag not in (None, "!", _TAG + ("seq" if is_list else "map")):
                node.problem = _tag_refused(event.tag)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, event: Any, path: KeyPath) -> Node:
        name = event.anchor
        if name not in self._anchors:
            text = f"the alias {quoted(name)} repeats nothing: no anchor of that name stands above it; add one"
            raise UnreadableError(_line(event), text)
        target = self._anchors[name]
        if target is None:
            text = f"the alias {quoted(name)} stands inside the entry that it repeats; write the entry out"
            raise UnreadableError(_line(event), text)
        self._check_depth(len(path) + target.height, event)
        self._count(target.num_entries, event)
        return dataclasses.replace(target, line=_line(event))

    def _sequence(self, event: Any, path: KeyPath) -> Node:
        items: list[Node] = []
        node = Node(_line(event), items, height=1)
        while not isinstance(item_event := self._next(), yaml.SequenceEndEvent):
            items.append(self._node(item_event, (*path, len(items))))
            node.add(items[-1])
        return node

    def _mapping(self, event: Any, path: KeyPath) -> Node:
        entries: dict[str, Entry] = {}
        merges: list[Entry] = []
        node = Node(_line(event), entries, height=1)
        while not isinstance(key_event := self._next(), yaml.MappingEndEvent):
            line = _line(key_event)
            key = self._node(key_event, (*path, "?"))
            value = self._node(self._next(), (*path, key.value if isinstance(key.value, str) else "?"))
            node.add(key)
            node.add(value)
            if _is_merge_key(key_event):
                self._check_once((*path, "<<"), merges[0].line if merges else None, line)
                merges.append(Entry(line, value))
            elif self._is_usable_key(key, path, line):
                present = entries.get(key.value)
                self._check_once((*path, key.value), present.line if present else None, line)
                entries.setdefault(key.value, Entry(line, value))
        for merge in merges:
            for name, entry in self._merged_entries(merge, path):
                entries.setdefault(name, entry)
        return node

    def _check_once(self, path: KeyPath, first_line: int | None, line: int) -> None:
        if first_line is not None:
            name = dotted(path)
            self._problem(line, f"{name} stands twice, on lines {first_line} and {line}; remove one of the two")

    def _is_usable_key(self, key: Node, path: KeyPath, line: int) -> bool:
        where = f"a key of {dotted(path)}" if path else "a key"
        if key.problem is not None:
            self._problem(line, f"{where} {key.problem}")
        elif not isinstance(key.value, str):
            self._problem(
                line, f"{where} is {_kind(key.value)}; only text is allowed as a key, quote it if that is meant"
            )
        return key.problem is None and isinstance(key.value, str)

    def _merged_entries(self, merge: Entry, path: KeyPath) -> Iterator[tuple[str, Entry]]:
        value = merge.node.value
        for source in value if isinstance(value, list) else [merge.node]:
            if isinstance(source.value, dict):
                yield from source.value.items()
            else:
                where, what = dotted((*path, "<<")), _kind(source.value)
                self._problem(merge.line, f"{where} merges {what}; a mapping or a list of mappings can be merged")

    def _problem(self, line: int, text: str) -> None:
        self.problems.append(YamlProblem(line, text))

    def _count(self, num_entries: int, event: Any) -> None:
        self._num_entries += num_entries
        if self._num_entries > MAX_ENTRIES:
            text = f"more than {MAX_ENTRIES} entries stand here with every alias written out; shorten the file"
            raise UnreadableError(_line(event), text)

    def _check_depth(self, depth: int, event: Any) -> None:
        if depth > MAX_DEPTH:
            text = f"the entry here is nested deeper than {MAX_DEPTH} levels, the most that is read; flatten it"
            raise UnreadableError(_line(event), text)


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _is_merge_key(event: Any) -> bool:
    return isinstance(event, yaml.ScalarEvent) and event.value == "<<" and not event.style and event.tag is None


def _scalar(event: Any) -> Node:
    if event.tag is None and not event.style:
        word = read_word(event.value)
    elif event.tag in (None, "!", _TAG + "str"):
        word = Word(event.value)
    else:
        word = _tagged_word(event.tag, event.value)
    unusable = _UNUSABLE_CHARACTER.search(event.value)
    if unusable:
        problem = f"holds the character {code_point(unusable.group())}, which is not allowed; remove it"
        word = Word(event.value, problem)
    written = None if isinstance(word.value, str) else event.value
    return Node(_line(event), word.value, problem=word.problem, disputed=word.disputed, written=written)


def _tagged_word(tag: str, text: str) -> Word:
    word = read_word(text)
    wanted = _SCALAR_TAGS.get(tag)
    if wanted is None:
        return Word(text, _tag_refused(tag))
    if word.problem is None and wanted is float and type(word.value) is int:
        return Word(float(word.value))
    if word.problem is None and type(word.value) is not wanted:
        return Word(text, f"is {quoted(text)}, which its tag {_short_tag(tag)} does not fit; remove the tag")
    return word


_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS: dict[str, type] = {
    _TAG + "int": int,
    _TAG + "float": float,
    _TAG + "bool": bool,
    _TAG + "null": type(None),
}
#: Half of a surrogate pair and NUL can be written with escapes; they break terminals and file names further on.
_UNUSABLE_CHARACTER = re.compile("[\x00\ud800-\udfff]")


def _tag_refused(tag: str) -> str:
    return (
        f"has the tag {_short_tag(tag)}; only text, numbers, true, false, null, lists and mappings are read, remove it"
    )


def _short_tag(tag: str) -> str:
    return quoted(tag.replace(_TAG, "!!"))


def _kind(value: object) -> str:
    names: dict[type, str] = {dict: "a mapping", list: "a list", type(None): "empty (null)", str: "text"}
    return names.get(type(value)) or str(value).lower()


def code_point(character: str) -> str:
    return f"U+{ord(character):04X}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def dotted(path: KeyPath) -> str:
    """A path as a person writes it: ``batch.micro_batch_sizes[1]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if _PLAIN_KEY.fullmatch(part) else quoted(part)
            text += f".{name}" if text else name
    return text


_PLAIN_KEY = re.compile(r"[^\W\d][\w-]{0,99}|<<")
