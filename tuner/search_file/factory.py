"""The forms in which search.yaml names a model or a batch. What is checked here needs no import of what is named."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from search_spaces.yaml_words import quoted
from tuner.search_file.suggestion import did_you_mean, nearest_name

MODEL_SOURCES = ("huggingface", "torchvision", "timm")
MODEL_FORMS = "huggingface:TYPE_OR_DIR, torchvision:NAME, timm:NAME, package.module:function or path/file.py:function"
FUNCTION_FORMS = "package.module:function or path/file.py:function"

_NAME = re.compile(r"[^\s:]+")
_DOTTED_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")


def check_model_factory(text: str, *, base_dir: Path | None) -> str:
    """The name of a model's factory, unchanged.

    Args:
        base_dir: Folder in which files must exist; None leaves that open.

    Raises:
        ValueError: It has none of the known forms, or its file is missing; the message follows the option's name.
    """
    source, _, name = text.partition(":")
    if source in MODEL_SOURCES:
        is_name = name.strip() == name != "" and not _UNPRINTABLE.search(name)
        if not is_name or (source != "huggingface" and not _NAME.fullmatch(name)):
            raise ValueError(f"is {quoted(text)}, which names nothing after the colon; allowed: {MODEL_FORMS}")
        return text
    _check_source(text, source, base_dir)
    return _check_function(text, MODEL_FORMS, base_dir)


def check_batch_factory(text: str, *, base_dir: Path | None) -> str:
    """The name of a batch's factory, unchanged; arguments and errors as for :func:`check_model_factory`."""
    source = text.partition(":")[0]
    if source in MODEL_SOURCES:
        raise ValueError(
            f"is {quoted(text)}, which names a model, not a function that makes batches; allowed: {FUNCTION_FORMS}"
        )
    return _check_function(text, FUNCTION_FORMS, base_dir)


def _check_source(text: str, source: str, base_dir: Path | None) -> None:
    """Refuses ``hugginface:gpt2``, which looks like a function of a module that is not there."""
    near = nearest_name(source, MODEL_SOURCES, similarity=0.8)
    if near is not None and _NAME.fullmatch(source) and "." not in source and not _is_own(source, base_dir):
        raise ValueError(f"is {quoted(text)}; allowed: {MODEL_FORMS}; did you mean {near}:{text.partition(':')[2]}?")


def _check_function(text: str, forms: str, base_dir: Path | None) -> str:
    place, colon, function = text.rpartition(":")
    is_file = place.endswith(".py") and not _UNPRINTABLE.search(place)
    if not colon and text.endswith(".py"):
        raise ValueError(f"is {quoted(text)}, a file without a function; allowed: {forms}; write {text}:FUNCTION")
    if not _DOTTED_NAME.fullmatch(function) or not (is_file or _DOTTED_NAME.fullmatch(place)):
        raise ValueError(f"is {quoted(text)}; allowed: {forms}")
    if is_file and base_dir is not None:
        _check_file(text, place, base_dir)
    elif not is_file and place.partition(".")[0] in sys.stdlib_module_names and not _is_own(place, base_dir):
        # os:system with model.args would be a command line in a file that looks like data.
        raise ValueError(f"is {quoted(text)}, a function of Python itself, which makes no model; allowed: {forms}")
    return text


def _is_own(place: str, base_dir: Path | None) -> bool:
    """Whether a module beside the search file has the name, and so hides Python's own."""
    name = place.partition(".")[0]
    return base_dir is not None and any(os.path.exists(base_dir / own) for own in (name, f"{name}.py"))


def _check_file(text: str, place: str, base_dir: Path) -> None:
    try:
        path = base_dir / Path(place).expanduser()
        if path.is_file():
            return
        neighbours = sorted(file.name for file in path.parent.glob("*.py"))
    except (OSError, RuntimeError) as error:  # a name that is too long, a folder that may not be read, an unknown ~user
        raise ValueError(f"is {quoted(text)}, a file that cannot be reached ({error}); name another one") from error
    advice = did_you_mean(path.name, neighbours)
    raise ValueError(f"is {quoted(text)}, but there is no file {path}; name a file beside the search file{advice}")
