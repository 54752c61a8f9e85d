"""search.yaml from file to typed config and back; everything that is wrong with it is said at once."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from search_spaces.strict_yaml import StrictYamlError, YamlDocument, read_yaml
from search_spaces.yaml_nodes import KeyPath, YamlProblem, dotted
from search_spaces.yaml_text import dump_yaml
from search_spaces.yaml_words import A_DATE, A_NUMBER, TRUE_OR_FALSE, quoted
from tuner.config import SearchConfig
from tuner.search_file.checks import Contradiction
from tuner.search_file.foreign_file import foreign_file_text
from tuner.search_file.messages import ConfigProblem, contradictions_in, option_problems
from tuner.search_file.names import study_name_from
from tuner.search_file.url import redact_url
from tuner.user_error import UserError

#: Lines at most for one file: more is a wall.
MAX_LINES = 25

#: Sections whose keys are the user's own, so that no type says what a word in them is meant to be.
_FREE_SECTIONS = (("model", "args"), ("optimizer", "args"))
#: Options that take an amount with its unit: a bare number in their place is answered as it was written.
_AMOUNTS: tuple[KeyPath, ...] = (("memory_cap",), ("search", "time_limit"), ("runner", "trial_timeout"))
#: Stand in for options that are wrong, so that the others can still be checked against each other.
_STAND_INS: dict[KeyPath, Any] = {
    ("model", "factory"): "huggingface:gpt2",
    ("batch", "global_batch_size"): 1,
    ("memory_cap",): "1GiB",
}
_ENTRY_STAND_INS: dict[KeyPath, Any] = {
    ("batch", "micro_batch_sizes"): 1,
    ("batch", "sequence_length"): 1,
    ("placement", "blocks"): "blocks",
    ("placement", "actions"): "none",
    ("placement", "units"): "unit",
    ("placement", "segment_sizes"): 1,
    ("runner", "resources_per_trial"): 1,
}


class ConfigError(UserError):
    """The search file cannot be used; one complete line for each thing that is wrong, in the order of the file."""


def load_search_file(path: str | os.PathLike[str]) -> SearchConfig:
    """The typed config of a search file, defaults included.

    Raises:
        ConfigError: The file cannot be read or something in it is wrong; every wrong thing has its line.
    """
    where = os.fspath(path)
    try:
        document, problems = read_yaml(path), []
    except StrictYamlError as error:
        if error.document is None:
            raise ConfigError([problem.located(where) for problem in error.problems]) from error
        document, problems = error.document, list(error.problems)
    unread = {problem.unread for problem in problems if problem.unread is not None}
    config, found = _checked(document, unread, Path(where))
    order = {path: position for position, path in enumerate(document.lines)}
    found.sort(key=lambda problem: order.get(problem.path, len(order)))
    problems += [YamlProblem(document.line_of(problem.path), problem.text) for problem in found]
    if config is None or problems:
        problems.sort(key=lambda problem: problem.line or 0)
        raise ConfigError(_shortened([problem.located(where) for problem in problems]))
    return config


def _shortened(lines: list[str]) -> list[str]:
    more = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], f"... and {more} more"] if more > 0 else lines


def _checked(
    document: YamlDocument, unread: Iterable[KeyPath], path: Path
) -> tuple[SearchConfig | None, list[ConfigProblem]]:
    """The config, or None and what is wrong besides the entries that could not be read."""
    data = document.data
    if not isinstance(data, dict):
        what = "empty" if data is None else "no mapping"
        text = f"the file is {what}; model.factory, batch.global_batch_size and memory_cap are needed at least"
        return None, [ConfigProblem((), text)]
    foreign = foreign_file_text(data)
    if foreign is not None:
        return None, [ConfigProblem((), foreign)]
    problems = list(_disputed_words(document))
    failed = {path for path in unread if path}
    data = _without(data, failed)
    _write_amounts(data, document)
    data.setdefault("study", study_name_from(path.stem))
    while True:
        try:
            config = SearchConfig.model_validate(data, context={"base_dir": path.parent})
        except ValidationError as error:
            found = contradictions_in(error)
            if found is not None:
                return None, [*problems, *_between_right_options(found, failed)]
            wrong = option_problems(error, document.written)
            assert not {problem.path for problem in wrong} <= failed, "what stands in for an option is right"
            problems += wrong
            failed |= {problem.path for problem in wrong}
            data = _without(data, failed)
        else:
            return config, problems


def _write_amounts(data: dict[str, Any], document: YamlDocument) -> None:
    """Puts the word that was written in the place of each amount that is a number."""
    for path in _AMOUNTS:
        *parents, last = path
        holder: Any = data
        for part in parents:
            holder = holder.get(part) if isinstance(holder, dict) else None
        value = holder.get(last) if isinstance(holder, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            holder[last] = document.written[path]


def _between_right_options(found: Iterable[Contradiction], failed: Iterable[KeyPath]) -> Iterator[ConfigProblem]:
    """The contradictions in which neither option is a stand-in for one that is wrong itself."""
    for one in found:
        if not any(_holds(entry, path) for path in (one.path, one.other) for entry in failed):
            yield ConfigProblem(one.path, one.text)


def _holds(outer: KeyPath, inner: KeyPath) -> bool:
    return inner[: len(outer)] == outer


def _disputed_words(document: YamlDocument) -> Iterator[ConfigProblem]:
    for path, meaning in document.disputed.items():
        if path[:2] in _FREE_SECTIONS:
            word = quoted(_entry(document.data, path))
            text = f"{dotted(path)} is {word}, which some readers of YAML take for text and others for {meaning}"
            yield ConfigProblem(path, f"{text}; {_DISPUTE_ADVICE[meaning]}put it in quotes if text is meant")


_DISPUTE_ADVICE = {
    TRUE_OR_FALSE: "write true or false, or ",
    A_NUMBER: "write plain decimal digits, or ",
    A_DATE: "",
}


def _entry(data: Any, path: KeyPath) -> Any:
    for part in path:
        data = data[part]
    return data


def _without(data: dict[str, Any], failed: Iterable[KeyPath]) -> dict[str, Any]:
    """A copy in which every failed entry is gone, or has something right in its place where one is needed."""
    data = copy.deepcopy(data)
    for path in failed:
        _take_out(data, path)
    for path, stand_in in _STAND_INS.items():
        if any(_holds(wrong, path) for wrong in failed):
            parent = data
            for part in path[:-1]:
                parent = parent.setdefault(str(part), {})
            parent.setdefault(str(path[-1]), stand_in)
    return data


def _take_out(data: Any, path: KeyPath) -> None:
    *parents, last = path
    holder = data
    for part in parents:
        if not _has(holder, part):
            return
        holder = holder[part]
    if not _has(holder, last):
        return
    stand_in = _ENTRY_STAND_INS.get(tuple(parents))
    if stand_in is not None:
        holder[last] = stand_in
    elif isinstance(holder, dict):
        del holder[last]
    else:
        _take_out(data, tuple(parents))  # No entry is known to be right in its place.


def _has(data: Any, part: str | int) -> bool:
    return part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int)


def resolved_yaml(config: SearchConfig, *, credentials: Literal["hidden", "kept"]) -> str:
    """The whole config as YAML, defaults included; a file that holds it beside the original loads as the same config.

    Args:
        credentials: ``hidden`` replaces user, password and tokens in addresses by ``***``, for files that are shared.
    """
    data = config.model_dump(mode="python")
    if credentials == "hidden":
        data["storage"] = _redacted(data["storage"])
        data["tracking"]["uri"] = _redacted(data["tracking"]["uri"])
        data["runner"]["ray_address"] = _redacted(data["runner"]["ray_address"])
    return dump_yaml(data)


def _redacted(url: str | None) -> str | None:
    return None if url is None else redact_url(url)
