"""The JSON schema of search.yaml: what editors complete from, and what messages quote as allowed."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from search_spaces.yaml_nodes import KeyPath
from tuner.config import SearchConfig

_ALTERNATIVES = ("oneOf", "anyOf")


@functools.cache
def _schema() -> dict[str, Any]:
    schema = SearchConfig.model_json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_without_titles(schema),
        "title": "search.yaml",
        "description": "A search for the fastest activation recompute placement under a memory cap.",
    }


def json_schema() -> dict[str, Any]:
    """The schema as plain data."""
    return copy.deepcopy(_schema())


def _without_titles(node: Any) -> Any:
    """A copy without the titles that repeat each key in other words."""
    if isinstance(node, dict):
        return {
            key: _without_titles(value) for key, value in node.items() if key != "title" or not isinstance(value, str)
        }
    return [_without_titles(item) for item in node] if isinstance(node, list) else node


def known_keys(path: KeyPath) -> tuple[str, ...]:
    """The keys of the section at ``path``; empty where it is none."""
    node = _at(path)
    return () if node is None else tuple(node.get("properties", ()))


def required_below(path: KeyPath) -> tuple[KeyPath, ...]:
    """The options that must be given at or below ``path``, in the order of search.yaml."""
    node = _at(path)
    if node is None or "properties" not in node:
        return (path,)
    return tuple(
        found for key in node["properties"] if key in node.get("required", ()) for found in required_below((*path, key))
    )


def paths_by_name() -> dict[str, KeyPath]:
    """The path of each key at the top level or in a section; of names that stand twice, the first one's."""
    paths: dict[str, KeyPath] = {key: (key,) for key in known_keys(())}
    for section in known_keys(()):
        for key in known_keys((section,)):
            paths.setdefault(key, (section, key))
    return paths


def allowed_at(path: KeyPath) -> str:
    """What may stand at ``path``, in words."""
    node = _at(path)
    return "no entry" if node is None else _in_words(node)


def words_at(path: KeyPath) -> tuple[str, ...]:
    """The fixed words that may stand at ``path``, as they are written in YAML."""
    node = _at(path)
    return () if node is None else tuple(_words(node))


def _words(node: Mapping[str, Any]) -> Iterator[str]:
    for option in (node, *(option for kind in _ALTERNATIVES for option in node.get(kind, ()))):
        yield from option.get("enum", ())
        yield from [option["const"]] if "const" in option else ()
        yield from ("true", "false") if option.get("type") == "boolean" else ()


def _at(path: KeyPath) -> Mapping[str, Any] | None:
    node: Mapping[str, Any] | None = _schema()
    for part in path:
        node = None if node is None else _child(node, part)
    return node


def _child(node: Mapping[str, Any], part: str | int) -> Mapping[str, Any] | None:
    for option in (node, *(option for kind in _ALTERNATIVES for option in node.get(kind, ()))):
        inner = option.get("items") if isinstance(part, int) else option.get("properties", {}).get(part)
        if inner is None and not isinstance(part, int):
            inner = option.get("additionalProperties")
        if isinstance(inner, Mapping):
            return _resolved(inner)
    return None


def _resolved(node: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = node.get("$ref")
    if reference is None:
        return node
    found: Mapping[str, Any] = _schema()["$defs"][reference.rpartition("/")[2]]
    return found


def _in_words(node: Mapping[str, Any]) -> str:
    for kind in _ALTERNATIVES:
        if kind in node:
            return " or ".join(_in_words(_resolved(option)) for option in node[kind])
    if "enum" in node or "const" in node:
        return ", ".join(str(value) for value in node.get("enum", (node.get("const"),)))
    return _WORDS[node["type"]](node)


def _number_in_words(node: Mapping[str, Any]) -> str:
    noun = "a whole number" if node["type"] == "integer" else "a number"
    if "minimum" in node and "maximum" in node:
        low, high = node["minimum"], node["maximum"]
        return str(low) if low == high else f"{noun} from {low} to {high}"
    bounds = {"minimum": "of at least", "exclusiveMinimum": "above", "maximum": "up to", "exclusiveMaximum": "below"}
    limits = " and ".join(f"{words} {node[key]:g}" for key, words in bounds.items() if key in node)
    return f"{noun} {limits}".rstrip()


def _text_in_words(node: Mapping[str, Any]) -> str:
    examples = node.get("examples")
    return "text" if examples is None else f"text such as {', '.join(examples)}"


def _mapping_in_words(node: Mapping[str, Any]) -> str:
    if "properties" in node:
        return f"a mapping with {', '.join(node['properties'])}"
    values = node.get("additionalProperties")
    return f"a mapping, each value {_in_words(_resolved(values))}" if isinstance(values, Mapping) else "a mapping"


_WORDS = {
    "integer": _number_in_words,
    "number": _number_in_words,
    "string": _text_in_words,
    "boolean": lambda _: "true or false",
    "null": lambda _: "null",
    "array": lambda node: f"a list, each entry {_in_words(_resolved(node['items']))}",
    "object": _mapping_in_words,
}
