"""Flat mappings in, exactly what MLflow stores out: legal names, no stand-in numbers, nothing cut off."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

T = TypeVar("T")
ParamValue: TypeAlias = str | int | float | bool | None
TagValue: TypeAlias = str | int | bool | None

#: Longest parameter that MLflow keeps; anything longer it cuts, with no more than a warning.
MAX_PARAM_LENGTH = 6000
#: Longest tag that every supported release keeps (newer ones allow 8000).
MAX_TAG_LENGTH = 5000
#: Longest name of a metric, parameter or tag.
MAX_NAME_LENGTH = 250
#: What a person still reads of a value that is kept whole elsewhere.
_EXCERPT_LENGTH = 200


@dataclass
class Entries:
    """What one run is given.

    Attributes:
        texts: Path inside the run's artifacts to the whole text of values too long for a parameter or tag.
    """

    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


def entries(
    *,
    params: Mapping[str, ParamValue] | None = None,
    metrics: Mapping[str, float | None] | None = None,
    tags: Mapping[str, TagValue] | None = None,
) -> Entries:
    """The mappings as MLflow can hold them.

    None is left out. A metric that is infinite or not a number is left out too, since MLflow would store another
    number for it, and named in a tag instead. Texts too long for their place are kept whole as an artifact, with an
    excerpt in their place. Characters that a name cannot hold become ``_``.

    Raises:
        ValueError: Two names would become the same one.
    """
    made = Entries()
    for name, value in _legal(params or {}):
        if value is not None:
            made.params[name] = _fit(_text(value), MAX_PARAM_LENGTH, f"params/{name}.txt", made.texts)
    for name, value in _legal(tags or {}):
        if value is not None:
            made.tags[name] = _fit(_text(value), MAX_TAG_LENGTH, f"tags/{name}.txt", made.texts)
    for name, number in _legal(metrics or {}):
        if number is None:
            continue
        if math.isfinite(number):
            made.metrics[name] = float(number)
        else:
            made.tags[name] = str(float(number))
    return made


def legal_name(name: str) -> str:
    """The name with every character that MLflow refuses replaced by ``_``."""
    legal = re.sub(r"[^A-Za-z0-9_. -]", "_", name)
    # A name may be treated as a file: one that starts with a dot could lead out of its folder.
    legal = re.sub(r"^\.+", "_", legal)
    return legal[:MAX_NAME_LENGTH] or "_"


def _legal(mapping: Mapping[str, T]) -> list[tuple[str, T]]:
    before: dict[str, str] = {}
    for name in mapping:
        other = before.setdefault(legal_name(name), name)
        if other != name:
            raise ValueError(
                f"names {other!r} and {name!r} are both {legal_name(name)!r} in MLflow, where letters, digits, "
                f"'_', '-', '.' and space are allowed; rename one of them"
            )
    return [(legal_name(name), value) for name, value in mapping.items()]


def _text(value: str | int | float) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _fit(text: str, limit: int, path: str, texts: dict[str, str]) -> str:
    if len(text) <= limit:
        return text
    texts[path] = text
    return f"{text[:_EXCERPT_LENGTH]}... ({len(text)} characters, whole in {path})"
