"""Megatron's and MindSpeed's rules as their sources state them, read without any code of the exporters."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

#: Flags of recompute and batch that a parser knows, and how many words follow: None is one or more.
WORDS_AFTER: dict[str, int | None] = {
    "--micro-batch-size": 1,
    "--global-batch-size": 1,
    "--recompute-granularity": 1,
    "--recompute-method": 1,
    "--recompute-num-layers": 1,
    "--recompute-modules": None,
    "--distribute-saved-activations": 0,
}
MODULES = {"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe"}


def arguments_of_array(text: str) -> dict[str, Any]:
    """What the parser gets from a shell array, by the names of config fields."""
    body = text.partition("RECOMPUTE_ARGS=(")[2].rpartition(")")[0]
    words = shlex.split(body, comments=True)
    arguments: dict[str, Any] = {}
    while words:
        flag = words.pop(0)
        number = WORDS_AFTER[flag]
        values = []
        while words and not words[0].startswith("--") and (number is None or len(values) < number):
            values.append(words.pop(0))
        assert number is None or len(values) == number, flag
        name = flag[2:].replace("-", "_")
        assert name not in arguments, flag
        arguments[name] = values if number is None else True if number == 0 else _number(values[0])
    return arguments


def _number(word: str) -> int | str:
    return int(word) if word.isdigit() else word


def why_refused(arguments: Mapping[str, Any], num_layers: int, *, clamps_last: bool = False) -> str | None:
    """What stops a run with these arguments on one pipeline stage."""
    granularity, method = arguments.get("recompute_granularity"), arguments.get("recompute_method")
    number, modules = arguments.get("recompute_num_layers"), arguments.get("recompute_modules")
    if granularity is None:
        given = [
            name for name in ("recompute_method", "recompute_num_layers", "recompute_modules") if arguments.get(name)
        ]
        return f"{given[0]} without granularity" if given else None
    if granularity == "full":
        if method not in ("uniform", "block") or not isinstance(number, int) or number < 1:
            return "full needs a method and a number of layers"
        if modules:
            return "modules are for selective"
        if method == "uniform" and num_layers % number and not clamps_last:
            return "the last run reads past the end"
        return None
    if granularity != "selective":
        return f"granularity {granularity}"
    if method is not None or number is not None:
        return "selective takes no method and no number of layers"
    unknown = set(modules or ()) - MODULES
    return f"unknown modules {unknown}" if unknown else None


def regions(arguments: Mapping[str, Any], num_layers: int) -> list[tuple[str, int, int]]:
    """For each layer what is recomputed, and the first and last layer of its region."""
    granularity = arguments.get("recompute_granularity")
    if granularity == "selective":
        (module,) = arguments["recompute_modules"]
        return [(module, layer, layer) for layer in range(num_layers)]
    cells = [("none", layer, layer) for layer in range(num_layers)]
    if granularity is None:
        return cells
    chosen = arguments.get("recompute_layer_ids")
    if chosen is not None:
        return [("block" if layer in chosen else "none", layer, layer) for layer in range(num_layers)]
    number = arguments["recompute_num_layers"]
    if arguments["recompute_method"] == "block":
        return [("block" if layer < number else "none", layer, layer) for layer in range(num_layers)]
    for first in range(0, num_layers, number):
        last = min(first + number, num_layers) - 1
        for layer in range(first, last + 1):
            cells[layer] = ("block" if first == last else "segment", first, last)
    return cells


def matched(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    """Names that MindSpeed's FSDP2 wraps, once for each pattern that matches.

    ``{*}`` is any whole number, ``{a-b}`` one of a range with both ends, ``*`` any text with dots, ``?`` one character.
    """
    known = list(names)
    return [name for pattern in patterns for name in known if _matches(pattern, name)]


def _matches(pattern: str, name: str) -> bool:
    numbers: list[tuple[int, int]] = []
    text = ""
    for part in re.split(r"(\{[^}]*\}|\*|\?)", pattern):
        if part == "{*}":
            text += r"\d+"
        elif part.startswith("{"):
            ends = re.fullmatch(r"\{(\d+)-(\d+)\}", part)
            assert ends is not None, f"unrecognized {part}"
            first, last = int(ends.group(1)), int(ends.group(2))
            assert first <= last, part
            numbers.append((first, last))
            text += r"(\d+)"
        else:
            text += {"*": ".*", "?": "."}.get(part, re.escape(part))
    match = re.fullmatch(text, name)
    return match is not None and all(
        first <= int(found) <= last for found, (first, last) in zip(match.groups(), numbers, strict=True)
    )
