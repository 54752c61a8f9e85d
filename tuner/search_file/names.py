"""Which names search.yaml may give: to a study, to units and actions, to paths in a model, to a cluster's resources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from search_spaces.actions import (
    BLOCK,
    EVERY_SECOND_MATMUL,
    KEEP_PRESETS,
    MATMULS,
    NONE,
    SEGMENT,
    SELECTIVE,
    UNIT_JOINER,
    WHOLE_BLOCK_ACTIONS,
    action_kind,
    asks_for_keep_sets,
    kept_by,
    selective_action,
    units_of,
)
from search_spaces.unit_span import is_spans, parse_spans
from search_spaces.yaml_words import quoted

#: Units that are found without being named, in models that have them.
FOUND_UNITS = ("attention", "cross_attention", "mlp")
#: Such units that begin or end inside a module; they are looked for only where an action names them.
FOUND_INNER_UNITS = ("activation", "norm")
MAX_STUDY_NAME = 80
#: Handling of RNG state of training stacks that have only one, in their newest release.
RNG_OF_TARGET = {
    "accelerate": False,
    "lightning": True,
    "llamafactory": True,
    "megatron": True,
    "mindspeed": True,
    "primus": True,
}

_NO_UNITS = WHOLE_BLOCK_ACTIONS
_STUDY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_UNIT_NAME = re.compile(r"[^\W\d_][\w-]{0,59}")
_MODULE_PATH = re.compile(r"\w+(\.\w+)*")
_UNIT_PATH = re.compile(r"\w+(\.\w+)*(\(\))?")
_RESOURCE_NAME = re.compile(r"[A-Za-z][\w.:/-]{0,99}")
_RAY_RESOURCES = ("GPU", "NPU", "CPU")


def check_study_name(name: str) -> str:
    """The name, unchanged; it becomes the name of a folder.

    Raises:
        ValueError: It could leave that folder or trouble a shell; the message follows the option's name.
    """
    if _STUDY_NAME.fullmatch(name) is None or name.endswith(".") or len(name) > MAX_STUDY_NAME:
        raise ValueError(
            f"is {quoted(name)}; allowed: at most {MAX_STUDY_NAME} letters A-Z, digits, '_', '-' and '.', "
            "the first no '-' or '.', the last no '.', since it becomes the name of a folder"
        )
    return name


def study_name_from(stem: str) -> str:
    """The study name most like a file's name."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).lstrip("-.")[:MAX_STUDY_NAME].rstrip("-.")
    return name or "study"


def check_module_path(path: str) -> str:
    """The path of a list of blocks, unchanged.

    Raises:
        ValueError: No module can have this path; the message follows the option's name.
    """
    if _MODULE_PATH.fullmatch(path) is None:
        raise ValueError(f"is {quoted(path)}; allowed: a path below the model such as transformer.h")
    return path


def check_unit_path(path: str) -> str:
    """The path of a unit below its block, unchanged; errors as for :func:`check_module_path`."""
    if is_spans(path):
        try:
            parse_spans(path)
        except ValueError as error:
            raise ValueError(f"is {error}") from error
        return path
    if _UNIT_PATH.fullmatch(path) is None:
        raise ValueError(
            f"is {quoted(path)}; allowed: a path below the block such as attn, or a method such as run_mlp()"
        )
    return path


def check_unit_names(units: dict[str, str]) -> dict[str, str]:
    """The units by name, unchanged.

    Raises:
        ValueError: A name cannot be told from another action; the message follows the option's name.
    """
    wrong = next((name for name in units if not are_unit_names([name])), None)
    if wrong is not None:
        raise ValueError(
            f"names a unit {quoted(wrong)}; allowed: letters, digits, '_' and '-', first a letter, but not "
            f"{', '.join(_NO_UNITS)}"
        )
    return units


def are_unit_names(names: Iterable[str]) -> bool:
    return all(_UNIT_NAME.fullmatch(name) is not None and name not in _NO_UNITS for name in names)


def normal_action(action: str) -> str:
    """The action with its units, or the operators it keeps, in alphabetical order. Which units there are is not known.

    Raises:
        ValueError: It joins what cannot be joined; the message follows the option's name.
    """
    if action_kind(action) == SELECTIVE:
        return _normal_selective(action)
    names = action.split(UNIT_JOINER)
    joins_whole_blocks = len(names) > 1 and any(name in _NO_UNITS for name in names)
    if "" in names or len(set(names)) < len(names) or joins_whole_blocks:
        raise ValueError(
            f"is {quoted(action)}; allowed: {', '.join(WHOLE_BLOCK_ACTIONS)}, a unit, or different units joined by "
            f"{UNIT_JOINER} such as attention{UNIT_JOINER}mlp"
        )
    return UNIT_JOINER.join(sorted(names))


def _normal_selective(action: str) -> str:
    if {MATMULS, EVERY_SECOND_MATMUL} <= set(kept_by(action)):
        raise ValueError(f"is {quoted(action)}; allowed: {MATMULS} or {EVERY_SECOND_MATMUL}; name one of the two")
    if asks_for_keep_sets(action):
        return action
    try:
        return selective_action(kept_by(action))
    except ValueError as error:
        raise ValueError(
            f"is {quoted(action)}: {error}; allowed: {SELECTIVE} alone, {SELECTIVE}: with one of "
            f"{', '.join(KEEP_PRESETS)}, or with operators joined by {UNIT_JOINER}"
        ) from error


def inner_units_in(actions: Iterable[str]) -> tuple[str, ...]:
    """The units to be looked for inside modules: those that an action names."""
    named = {unit for action in actions for unit in units_of(action)}
    return tuple(name for name in FOUND_INNER_UNITS if name in named)


def default_actions(units: Iterable[str] | None) -> tuple[str, ...]:
    """The actions where none are named: each unit alone, attention with MLP, and those of whole blocks.

    Args:
        units: Units that the user named; None where they are found.
    """
    names = ["attention", "mlp"] if units is None else list(units)
    both = [f"attention{UNIT_JOINER}mlp"] if {"attention", "mlp"} <= set(names) else []
    return (NONE, *names, *both, BLOCK, SEGMENT)


def check_resources(resources: Mapping[str, float]) -> Mapping[str, float]:
    """The amounts by Ray's names, unchanged.

    Raises:
        ValueError: A name or an amount is none that a cluster can give; the message follows the option's name.
    """
    allowed = "GPU, NPU, CPU, or a name that the cluster's nodes were started with"
    for name, amount in resources.items():
        if name not in _RAY_RESOURCES and name.upper() in _RAY_RESOURCES:
            raise ValueError(f"names {quoted(name)}; allowed: {allowed}; write {name.upper()}")
        if _RESOURCE_NAME.fullmatch(name) is None:
            raise ValueError(f"names {quoted(name)}; allowed: {allowed}")
        if name in ("GPU", "NPU") and amount != int(amount):
            raise ValueError(
                f"asks {name}: {amount:g}; allowed: whole devices, since trials that share one distort each other"
            )
    return resources
