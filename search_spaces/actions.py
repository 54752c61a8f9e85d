"""What may be done to a block, as one word: how actions are spelled, taken apart and brought into their normal form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from search_spaces.kept_operators import KeptOperator, normal_keep
from search_spaces.unit_span import is_spans

NONE = "none"
BLOCK = "block"
SEGMENT = "segment"
#: The block is one region that keeps what some operators give. Within the program the action carries them,
#: ``selective:aten.addmm.default[0]+aten.mm.default``; ``policy.yaml`` has them apart, as ``keep``.
SELECTIVE = "selective"
#: Joins unit names into one action: ``attention+mlp`` is two recompute regions, one per unit.
UNIT_JOINER = "+"
#: The block's activations wait on the host; nothing is rebuilt.
OFFLOAD = "offload"
#: Actions that are not made of units.
WHOLE_BLOCK_ACTIONS = (NONE, BLOCK, SEGMENT, SELECTIVE, OFFLOAD)
#: What ``selective:NAME`` keeps: which operators these are depends on the device, so a model has to be run to tell.
MATMULS, ATTENTION_ONLY, EVERY_SECOND_MATMUL = "matmuls", "attention", "every_second_matmul"
KEEP_PRESETS = (MATMULS, ATTENTION_ONLY, EVERY_SECOND_MATMUL)
_KEEP_MARK = ":"


def units_of(action: str) -> tuple[str, ...]:
    """The units that an action recomputes, each a region of its own; empty for actions on whole blocks."""
    is_whole = action.partition(_KEEP_MARK)[0] in WHOLE_BLOCK_ACTIONS
    return () if is_whole else tuple(action.split(UNIT_JOINER))


def selective_action(keep: Iterable[str]) -> str:
    """The action that recomputes a block but for these operators' outputs, in its one normal form.

    Raises:
        ValueError: An entry cannot be read; see `search_spaces.kept_operators`.
    """
    return f"{SELECTIVE}{_KEEP_MARK}{UNIT_JOINER.join(normal_keep(keep))}"


def kept_by(action: str) -> tuple[str, ...]:
    """The operators whose outputs an action keeps; empty for every action but selective ones."""
    kind, mark, keep = action.partition(_KEEP_MARK)
    return tuple(keep.split(UNIT_JOINER)) if kind == SELECTIVE and mark else ()


def asks_for_keep_sets(action: str) -> bool:
    """Whether a search has to find out what is kept: ``selective``, or ``selective:NAME`` with a preset's name."""
    return action == SELECTIVE or (action_kind(action) == SELECTIVE and set(kept_by(action)) <= set(KEEP_PRESETS))


def action_kind(action: str) -> str:
    """The action without the operators that it keeps."""
    return action.partition(_KEEP_MARK)[0]


def shown_action(action: str) -> str:
    """The action for tables: of operators that are kept only what tells them apart, ``selective(addmm[0]+bmm)``."""
    if not kept_by(action) or asks_for_keep_sets(action):
        return action
    return f"{SELECTIVE}({UNIT_JOINER.join(KeptOperator.parse(entry).short for entry in kept_by(action))})"


def normal_action(action: str) -> str:
    """The action in its one normal form: units, or operators that are kept, each once and in alphabetical order."""
    if kept_by(action) and not asks_for_keep_sets(action):
        return selective_action(kept_by(action))
    return UNIT_JOINER.join(sorted(set(units_of(action)))) or action


def why_not_compiled(action: str, unit_paths: Mapping[str, str]) -> str | None:
    """Why blocks under this action cannot be compiled, as half a sentence; None where they can."""
    if action_kind(action) == SELECTIVE:
        return "the outputs of single operators cannot be kept in compiled code"
    if action == OFFLOAD:
        return "what compiled code keeps for backward is its own affair"
    inner = next((unit for unit in units_of(action) if is_spans(unit_paths.get(unit, ""))), None)
    return None if inner is None else f"unit {inner} begins or ends inside a module, which compiled code does not show"
