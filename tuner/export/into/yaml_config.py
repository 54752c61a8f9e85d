"""YAML, edited by the marks of its nodes; the nodes before and after are compared, anchors and merges included."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tuner.export.into.config_text import (
    KeyPath,
    Tree,
    UneditableError,
    line_at,
    line_break,
    line_end,
    line_start,
    replaced,
)
from tuner.export.yaml_block import dump_yaml_block, yaml_value

#: Words that another program puts in place of a value: OmegaConf's, shells' and Jinja's.
_TEMPLATE = re.compile(r"\$\{|\{\{|\{%|<<[A-Z_]+>>")
#: A few lines of nested aliases can stand for billions.
_MOST_NODES = 100_000
_ALIAS = re.compile(r"[ \t]*(\*[^\s,\]}]+)")


class YamlConfig:
    """One document of mappings."""

    name = "YAML"
    has_null = True

    def read(self, text: str) -> Tree:
        tree = _Reader().tree(_compose(text))
        assert isinstance(tree, dict), "the root is a mapping"
        return tree

    def plain(self, value: object) -> object:
        if isinstance(value, dict):
            return {key: self.plain(item) for key, item in value.items()}
        return _Reader().tree(yaml.compose(yaml_value(value), Loader=yaml.SafeLoader))

    def line_of(self, text: str, path: KeyPath) -> int:
        key, _ = _entry(_compose(text), path)
        return int(key.start_mark.line) + 1

    def set_value(self, text: str, path: KeyPath, value: object, *, after: str | None) -> str:
        root = _compose(text)
        parent = _parent(root, path)
        for key, node in parent.value:
            if key.value == path[-1]:
                return _replaced_value(text, key, node, value, path)
        if parent.flow_style:
            return _added_in_flow(text, parent, path, value)
        beside = next((entry for entry in parent.value if entry[0].value == after), parent.value[-1])
        return _added_line(text, parent, beside, dump_yaml_block({path[-1]: value}).rstrip("\n"))

    def remove(self, text: str, path: KeyPath) -> str:
        parent = _parent(_compose(text), path)
        if parent.flow_style:
            return _removed_from_flow(text, parent, path[-1])
        key, node = _entry(_compose(text), path)
        _refuse_anchor(text, key, node, path)
        start = line_start(text, key.start_mark.index)
        if text[start : key.start_mark.index].strip() or len(parent.value) == 1:
            line = key.start_mark.line + 1
            raise UneditableError(line, f"{'.'.join(path)} cannot be taken out of its line alone; remove it by hand")
        end = line_end(text, _end(key, node))
        end = text.find("\n", end) + 1 if "\n" in text[end:] else len(text)
        return replaced(text, start, end, "")


def _compose(text: str) -> Any:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join((error.problem or "").split())
        line = None if mark is None else mark.line + 1
        raise UneditableError(line, f"is not plain YAML ({problem}); edit it by hand or correct it") from error
    except (yaml.YAMLError, ValueError) as error:
        raise UneditableError(None, f"is not YAML ({' '.join(str(error).split())}); correct it") from error
    if not isinstance(root, yaml.MappingNode):
        raise UneditableError(1, "holds no mapping of keys and values; name the stack's config")
    return root


class _Reader:
    """Turns nodes into a tree with every alias written out, so that an edit of one place is seen at the others."""

    def __init__(self) -> None:
        self._num_nodes = 0
        self._around: set[int] = set()

    def tree(self, node: Any) -> object:
        """Mappings by key, lists, and each scalar as its tag and text."""
        self._num_nodes += 1
        line = node.start_mark.line + 1
        if self._num_nodes > _MOST_NODES or id(node) in self._around:
            raise UneditableError(line, "repeats anchors inside themselves or too often; write them out")
        if isinstance(node, yaml.ScalarNode):
            return (node.tag, _text(node))
        self._around.add(id(node))
        result: Any = [self.tree(item) for item in node.value] if isinstance(node, yaml.SequenceNode) else {}
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            # A key that is a list or mapping itself is no part of a path.
            name = key.value if isinstance(key, yaml.ScalarNode) else (repr(self.tree(key)),)
            if name in result:
                line = key.start_mark.line + 1
                raise UneditableError(line, f"says {name} twice in one mapping; keep one of the two")
            result[name] = self.tree(value)
        self._around.remove(id(node))
        return result


def _text(node: Any) -> str:
    """Of equal values the same text: 1_000 and 1000 differ, true and True do not."""
    if node.tag == "tag:yaml.org,2002:bool":
        return str(node.value).lower()
    if node.tag == "tag:yaml.org,2002:null":
        return ""
    return str(node.value)


def _parent(root: Any, path: KeyPath) -> Any:
    node = root
    for number, name in enumerate(path[:-1], start=1):
        key, node = _entry(root, path[:number])
        if node.start_mark.index < key.end_mark.index:
            line = key.start_mark.line + 1
            raise UneditableError(line, f"{name} repeats an anchor, which an edit would change as well; write it out")
    return node


def _entry(root: Any, path: KeyPath) -> tuple[Any, Any]:
    key, node = None, root
    for name in path:
        key, node = next((key, value) for key, value in node.value if key.value == name)
    return key, node


def _end(key: Any, node: Any) -> int:
    """Where the text of a value ends; the parser's own mark of a collection is at whatever follows it."""
    if node.start_mark.index < key.end_mark.index:
        # An alias: the node is that of its anchor.
        return int(key.end_mark.index)
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return _trimmed_end(node)
    last = node.value[-1]
    return _end(*last) if isinstance(node, yaml.MappingNode) else _end_of_item(last)


def _end_of_item(node: Any) -> int:
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return _trimmed_end(node)
    last = node.value[-1]
    return _end(*last) if isinstance(node, yaml.MappingNode) else _end_of_item(last)


def _trimmed_end(node: Any) -> int:
    """A block scalar's mark stands behind its last line break, and behind empty lines."""
    end = int(node.end_mark.index)
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        text = node.end_mark.buffer
        if text is not None:
            while end > node.start_mark.index and text[end - 1] in "\r\n \0":
                end -= 1
    return end


def _refuse_anchor(text: str, key: Any, node: Any, path: KeyPath) -> None:
    if node.start_mark.index >= key.end_mark.index and text[node.start_mark.index : node.start_mark.index + 1] in "&!":
        if node.start_mark.index == node.end_mark.index:
            return
        line, name = key.start_mark.line + 1, ".".join(path)
        raise UneditableError(
            line, f"{name} has an anchor or tag, so its value may be used elsewhere; write it plainly"
        )


def _replaced_value(text: str, key: Any, node: Any, value: object, path: KeyPath) -> str:
    name, line = ".".join(path), key.start_mark.line + 1
    if node.start_mark.index < key.end_mark.index:
        colon = text.index(":", key.end_mark.index) + 1
        alias = _ALIAS.match(text, colon)
        assert alias is not None, "what stands before its own key is an alias"
        return replaced(text, alias.start(1), alias.end(1), yaml_value(value))
    _refuse_anchor(text, key, node, path)
    start, end = int(node.start_mark.index), _end(key, node)
    if _TEMPLATE.search(text[start:end]):
        raise UneditableError(
            line, f"{name} is {text[start:end].strip()}, which something else fills in; write a value"
        )
    if isinstance(node, yaml.ScalarNode):
        if node.style in ("|", ">"):
            raise UneditableError(line, f"{name} is text over several lines; write it on one")
        new = _in_quotes(node.style, value)
        return replaced(text, start, end, new if start < end else f" {new}")
    if node.flow_style:
        return replaced(text, start, end, yaml_value(value))
    if isinstance(node, yaml.SequenceNode) and isinstance(value, list) and value:
        indent = " " * node.start_mark.column
        return replaced(text, start, end, f"{line_break(text)}{indent}".join(f"- {yaml_value(item)}" for item in value))
    colon = text.index(":", key.end_mark.index) + 1
    return replaced(text, colon, end, f" {yaml_value(value)}")


def _in_quotes(style: str | None, value: object) -> str:
    """The value as the old one was written, where it is text."""
    plain = yaml_value(value)
    if style in ("'", '"') and isinstance(value, str) and not set(value) & set("'\"\\") and value.isprintable():
        return f"{style}{value}{style}"
    return plain


def _added_line(text: str, parent: Any, beside: tuple[Any, Any], new: str) -> str:
    """The entry on lines of its own below another one of its mapping."""
    key, node = beside
    indent = " " * parent.value[0][0].start_mark.column
    end = line_end(text, max(_end(key, node), int(key.end_mark.index)))
    lines = new.split("\n")
    return replaced(text, end, end, "".join(f"{line_break(text)}{indent}{line}" for line in lines))


def _added_in_flow(text: str, parent: Any, path: KeyPath, value: object) -> str:
    new = f"{yaml_value(path[-1])}: {yaml_value(value)}"
    if not parent.value:
        start = parent.start_mark.index + 1
        return replaced(text, start, start, new)
    end = max(_end(*parent.value[-1]), int(parent.value[-1][0].end_mark.index))
    if _ALIAS.match(text, end + 1):
        raise UneditableError(line_at(text, end), "ends in an alias; write the mapping over several lines")
    return replaced(text, end, end, f", {new}")


def _removed_from_flow(text: str, parent: Any, name: str) -> str:
    entries = list(_spans(parent))
    (index,) = (index for index, (key, _, _) in enumerate(entries) if key == name)
    _, start, end = entries[index]
    if index + 1 < len(entries):
        return replaced(text, start, entries[index + 1][1], "")
    return replaced(text, entries[index - 1][2] if index else parent.start_mark.index + 1, end, "")


def _spans(parent: Any) -> Iterator[tuple[str, int, int]]:
    for key, node in parent.value:
        yield key.value, int(key.start_mark.index), max(_end(key, node), int(key.end_mark.index))
