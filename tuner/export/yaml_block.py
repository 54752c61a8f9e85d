"""Nested mappings as YAML with one key a line, the way training configs are written."""

from __future__ import annotations

from collections.abc import Mapping

from search_spaces.yaml_text import dump_yaml_line


def dump_yaml_block(data: Mapping[str, object], *, depth: int = 0) -> str:
    """Mappings over lines, indented by two spaces a level; lists on one line; an empty mapping as ``{}``.

    Raises:
        ValueError: The data hold something that plain YAML cannot say.
    """
    return "".join("  " * depth + _entry(key, value, depth) for key, value in data.items())


def yaml_value(value: object) -> str:
    """One value on one line, in quotes where readers could take it for something else, inside brackets as well."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{yaml_value(key)}: {yaml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(yaml_value, value)) + "]"
    return dump_yaml_line(value)


def _entry(key: str, value: object, depth: int) -> str:
    if isinstance(value, Mapping) and value:
        return f"{yaml_value(key)}:\n" + dump_yaml_block(value, depth=depth + 1)
    return f"{yaml_value(key)}: {yaml_value(value)}\n"
