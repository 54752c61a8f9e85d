"""The words of a shell script that may be arguments of a command, with their positions. Needs tree-sitter's bash."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tuner.export.into.config_text import UneditableError

_EXPANSIONS = {
    "simple_expansion",
    "expansion",
    "command_substitution",
    "process_substitution",
    "arithmetic_expansion",
    "brace_expression",
    "translated_string",
}
#: Statements whose body does not run exactly once.
_CONDITIONAL = {"if_statement", "case_statement", "while_statement", "for_statement", "c_style_for_statement"}
_WORD_IN_STRING = re.compile(rb"(?:(?!\\\n)\S)+")
_LITERAL_IN_STRING = re.compile(rb"[^$`\\\"']*")


@dataclass(frozen=True)
class Word:
    """One argument.

    Attributes:
        start: First byte.
        end: Byte behind the last one.
        text: What the command gets; None where an expansion decides on it.
        group: Which command, array or string it stands in, as that one's first byte.
        kind: Of the group.
        is_conditional: Whether it stands in a branch or loop.
    """

    start: int
    end: int
    text: str | None
    group: int
    kind: Literal["command", "array", "string"]
    is_conditional: bool


@dataclass(frozen=True)
class Assignment:
    """A variable that is given a value; positions of the value."""

    name: str
    start: int
    end: int
    text: str | None
    is_conditional: bool


@dataclass(frozen=True)
class ShellScript:
    """What a script consists of, as far as arguments are concerned.

    Attributes:
        words: In the order of the script.
        assignments: Likewise.
        comments: Spans of comments, in bytes.
    """

    words: tuple[Word, ...]
    assignments: tuple[Assignment, ...]
    comments: tuple[tuple[int, int], ...]


def read_shell(script: bytes) -> ShellScript:
    """The arguments in a script.

    Raises:
        UneditableError: It is no shell script that can be read whole.
    """
    broken_line = script.find(b"\\\r\n")
    if broken_line >= 0:
        raise UneditableError(
            script.count(b"\n", 0, broken_line) + 1,
            "ends in a backslash and a Windows line break, so that bash does not continue the line; "
            "save the script with Unix line breaks",
        )
    root = _parser().parse(script).root_node
    if root.has_error:
        broken = next(node for node in _nodes(root) if node.type == "ERROR" or node.is_missing)
        raise UneditableError(broken.start_point[0] + 1, "is not plain bash from here on; edit the arguments by hand")
    words: list[Word] = []
    assignments: list[Assignment] = []
    comments: list[tuple[int, int]] = []
    for node in _nodes(root):
        if node.type == "comment":
            comments.append((node.start_byte, node.end_byte))
        elif node.type == "command":
            words += [_word(child, node, "command") for child in node.children_by_field_name("argument")]
        elif node.type == "array":
            words += [_word(child, node, "array") for child in node.named_children if child.type != "comment"]
        elif node.type == "variable_assignment":
            value = node.child_by_field_name("value")
            name = node.child_by_field_name("name")
            if value is not None and name is not None and value.type != "array":
                words += _words_of_string(value)
                assignments.append(
                    Assignment(
                        name.text.decode(), value.start_byte, value.end_byte, _literal(value), _is_conditional(node)
                    )
                )
    return ShellScript(tuple(words), tuple(assignments), tuple(comments))


def _parser() -> Any:
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError as error:
        raise UneditableError(
            None, 'is a shell script, and bash cannot be read here; install "recompute-tuner[shell]"'
        ) from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def _nodes(node: Any) -> Iterator[Any]:
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def _word(node: Any, group: Any, kind: Literal["command", "array"]) -> Word:
    return Word(node.start_byte, node.end_byte, _literal(node), group.start_byte, kind, _is_conditional(node))


def _literal(node: Any) -> str | None:
    if any(inner.type in _EXPANSIONS for inner in _nodes(node)):
        return None
    try:
        words = shlex.split(node.text.decode())
    except ValueError:
        return None
    return words[0] if len(words) == 1 else None


def _words_of_string(node: Any) -> Iterator[Word]:
    """Of text that holds arguments, as in ``ARGS="--lr 1e-4 --fp16"``; a backslash ends a line within it."""
    if node.type not in ("string", "raw_string"):
        return
    content, start = node.text[1:-1], node.start_byte + 1
    for match in _WORD_IN_STRING.finditer(content):
        is_literal = _LITERAL_IN_STRING.fullmatch(match.group()) is not None
        text = match.group().decode() if is_literal else None
        yield Word(start + match.start(), start + match.end(), text, node.start_byte, "string", _is_conditional(node))


def _is_conditional(node: Any) -> bool:
    while node is not None:
        if node.type in _CONDITIONAL:
            return True
        node = node.parent
    return False
