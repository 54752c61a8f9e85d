"""Plain data as YAML text that every reader of YAML takes for the same data."""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

from search_spaces.yaml_words import DISPUTED_NUMBER, NUMBER, SHORT_BOOLEAN


def dump_yaml(data: Any) -> str:
    """Block style in the order given, innermost lists and mappings on one line.

    Raises:
        ValueError: The data hold something other than None, bool, int, float, str, list, tuple and dict.
    """
    return _dumped(data, default_flow_style=None, width=140)


def dump_yaml_line(data: Any) -> str:
    """All on one line, however long, without a line break at the end; errors as for :func:`dump_yaml`."""
    return _dumped([data], default_flow_style=True, width=math.inf).strip()[1:-1]


def _dumped(data: Any, **style: Any) -> str:
    try:
        return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **style))
    except yaml.representer.RepresenterError as error:
        raise ValueError(
            f"{error.args[1]!r} is a {type(error.args[1]).__name__}, which plain YAML cannot say"
        ) from error


class _Dumper(yaml.SafeDumper):
    """Puts text in quotes where any reader would take it for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # Line breaks and the like come back whole only from double quotes.
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"')


_Dumper.add_representer(str, _represent_text)
for _tag, _pattern, _first in (
    ("float", NUMBER, "-+.0123456789"),
    ("int", DISPUTED_NUMBER, "-+0123456789"),
    ("bool", SHORT_BOOLEAN, "yYnN"),
):
    _whole = re.compile(rf"(?:{_pattern.pattern})\Z")
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _whole, list(_first))
