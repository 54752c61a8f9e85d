"""What is wrong with the data of search.yaml, one line for each thing, in the words of the person who wrote it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from search_spaces.yaml_nodes import KeyPath, dotted
from search_spaces.yaml_words import quoted, read_word
from tuner.search_file.checks import CONTRADICTIONS, Contradiction
from tuner.search_file.schema import allowed_at, known_keys, paths_by_name, required_below, words_at
from tuner.search_file.suggestion import did_you_mean, nearest_name
from tuner.search_file.url import redact_url
from tuner.search_file.values import TAG_MARK

#: From 0 to 1; more than is asked of a key of the same section.
_SIMILARITY_ELSEWHERE = 0.8


@dataclass(frozen=True)
class ConfigProblem:
    """One line for the user, without file and line number, and the option that it is about."""

    path: KeyPath
    text: str


def contradictions_in(error: ValidationError) -> list[Contradiction] | None:
    """The contradictions between options that are each fine; None where single options are wrong."""
    details = error.errors()
    if [detail["type"] for detail in details] != [CONTRADICTIONS]:
        return None
    found: list[Contradiction] = details[0]["ctx"]["all"]
    return found


def option_problems(error: ValidationError, written: Mapping[KeyPath, str]) -> list[ConfigProblem]:
    """What is wrong with single options, in the order of search.yaml.

    Args:
        written: The words that numbers, true and false were written as.
    """
    return [problem for detail in error.errors() for problem in _problems(detail, written)]


def _problems(detail: ErrorDetails, written: Mapping[KeyPath, str]) -> Iterator[ConfigProblem]:
    path = tuple(part for part in detail["loc"] if not (isinstance(part, str) and part.startswith(TAG_MARK)))
    kind = detail["type"]
    if kind == "missing":
        for missing in required_below(path):
            yield ConfigProblem(missing, f"{dotted(missing)} is missing; allowed: {allowed_at(missing)}; add it")
    elif kind == "extra_forbidden":
        yield ConfigProblem(path, _unknown_key(path, detail["input"]))
    elif kind == "too_short" and detail["input"]:
        return  # Every entry is wrong, and each has said so.
    elif kind == "value_error":
        yield ConfigProblem(path, f"{dotted(path)} {detail['ctx']['error']}")
    else:
        text = f"is {_shown(detail['input'], path, written)}; allowed: {allowed_at(path)}{_advice(detail, path)}"
        yield ConfigProblem(path, f"{dotted(path) or 'the file'} {text}")


def _unknown_key(path: KeyPath, value: Any) -> str:
    section, key = path[:-1], str(path[-1])
    known = known_keys(section)
    shown = dotted((*section, redact_url(key) if "://" in key else key))
    where = f"in {dotted(section)}" if section else "at the top level"
    advice = _written_flat(key) or _one_level_up(section, value) or did_you_mean(key, known) or _meant_elsewhere(key)
    return f"{shown} is no known key; allowed {where}: {', '.join(known)}{advice or '; remove it'}"


def _written_flat(key: str) -> str:
    """What to write for a key such as ``search.seed``, which other programs take as a path."""
    section, _, name = key.partition(".")
    return f"; write {section}: {{{name}: ...}}" if name in known_keys((section,)) else ""


def _one_level_up(section: KeyPath, value: Any) -> str:
    """What to do with a mapping around sections that are right."""
    is_around = not section and isinstance(value, dict) and bool(value) and value.keys() <= set(known_keys(()))
    return "; write what is in it at the top level" if is_around else ""


def _meant_elsewhere(key: str) -> str:
    """As `did_you_mean`, of the keys of other sections: what other programs have at the top level is often there."""
    paths = paths_by_name()
    near = nearest_name(key, paths, similarity=_SIMILARITY_ELSEWHERE)
    return "" if near is None else f"; did you mean {dotted(paths[near])}?"


def _advice(detail: ErrorDetails, path: KeyPath) -> str:
    """What to do, where the value tells what was meant."""
    value, allowed = detail["input"], allowed_at(path)
    if isinstance(value, str):
        words = words_at(path)
        if value.lower() in _YES_AND_NO and "true" in words:
            return f"; write {_YES_AND_NO[value.lower()]}"
        if detail["type"] in ("int_type", "float_type") and not isinstance(read_word(value).value, str):
            return "; remove the quotes"
        return did_you_mean(value, words) or ("; put it in brackets" if "a list" in allowed else _as_section(path))
    if value is None and known_keys(path):
        return "; give it a key, or remove it where its defaults will do"
    if detail["type"] == "string_type" and isinstance(value, bool | int | float):
        return "; put it in quotes if text is meant"
    return _as_section(path)


def _as_section(path: KeyPath) -> str:
    """How a value that stands in the place of a whole section is written."""
    keys = known_keys(path)
    return f"; write {dotted(path)}: {{{keys[0]}: ...}}" if path and keys else ""


_MAX_SHOWN = 8
_MAX_WORD = 60
_YES_AND_NO = {word: "true" for word in ("yes", "y", "on", "true")} | {
    word: "false" for word in ("no", "n", "off", "false")
}


def _shown(value: Any, path: KeyPath, written: Mapping[KeyPath, str]) -> str:
    """The value as it was written, on one short line and without credentials."""
    if isinstance(value, str):
        return quoted(redact_url(value) if "://" in value or "@" in value else value)
    if isinstance(value, list | tuple):
        return _shown_list(value, path, written) if value else "an empty list"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if value is None:
        return "empty (null)"
    word = written.get(path, "")
    return word if 0 < len(word) <= _MAX_WORD else str(value).lower()


def _shown_list(values: Sequence[Any], path: KeyPath, written: Mapping[KeyPath, str]) -> str:
    shown = [_shown(value, (*path, index), written) for index, value in enumerate(values[:_MAX_SHOWN])]
    text = f"[{', '.join(shown)}]"
    return text if len(values) <= _MAX_SHOWN and len(text) <= _MAX_WORD else f"a list of {len(values)}"
