"""Parts of a block that can be recomputed on their own: attention, MLP and the like, found by their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch import nn

from runners.inspection.inner_units import can_name
from runners.inspection.unit_path import resolve_unit
from search_spaces.unit_span import is_spans

ATTENTION, CROSS_ATTENTION, MLP = "attention", "cross_attention", "mlp"
UNIT_NAMES = (ATTENTION, CROSS_ATTENTION, MLP)

#: Methods that hold a unit which is no module of its own: torch.nn's transformer layers, transformers' BERT-like ones.
_METHODS = {
    "_sa_block": ATTENTION,
    "_mha_block": CROSS_ATTENTION,
    "_ff_block": MLP,
    "feed_forward_chunk": MLP,
    "ff_chunk": MLP,
}
_MAX_DEPTH = 2

_CROSS = re.compile(r"cross|enc(oder)?_?dec|encoder_attn|multihead_attn$|^src_attn$", re.IGNORECASE)
_ATTENTION = re.compile(r"attn|attention|^mha$|^sa$", re.IGNORECASE)
_MLP = re.compile(r"mlp|feed_?for?ward|ffn|^ffw?d?$|^ffw|moe|swiglu|geglu|layerff$|experts$", re.IGNORECASE)
#: Attention with learned projections, and an MLP, have at least two matrices; norms, dropouts and gates have fewer.
_MIN_MATRICES = 2
#: BERT-like blocks without a method for the MLP: its first half, which holds the activation function.
_HALF_MLP = "intermediate"


def unit_candidates(blocks: Sequence[nn.Module]) -> dict[str, list[str]]:
    """Unit name -> paths below the block that every block has, the best one first."""
    found = [_paths_by_unit(block) for block in {id(block): block for block in blocks}.values()]
    shared: dict[str, list[str]] = {}
    for unit in UNIT_NAMES:
        paths = [path for path in found[0].get(unit, []) if all(path in other.get(unit, []) for other in found)]
        if paths:
            shared[unit] = paths
    return shared


def known_paths(block: nn.Module) -> list[str]:
    """Every path that may be named as a unit of the block, for an error that lists the near ones."""
    modules = [name for name, _ in block.named_modules() if name]
    own = [name for cls in type(block).__mro__ if cls.__module__ != nn.Module.__module__ for name in vars(cls)]
    methods = [f"{name}()" for name in own if not name.startswith("__") and callable(getattr(block, name, None))]
    return [*modules, *methods]


def has_unit(block: nn.Module, path: str) -> bool:
    if is_spans(path):
        return can_name(block, path)
    try:
        resolve_unit(block, path)
    except AttributeError:
        return False
    return True


def _paths_by_unit(block: nn.Module) -> dict[str, list[str]]:
    paths: dict[str, list[str]] = {}
    for method, unit in _METHODS.items():
        if hasattr(type(block), method):
            paths.setdefault(unit, []).append(f"{method}()")
    for path, unit in _modules_by_unit(block):
        paths.setdefault(unit, []).append(path)
    if isinstance(getattr(block, _HALF_MLP, None), nn.Module):
        paths.setdefault(MLP, []).append(_HALF_MLP)
    return paths


def _modules_by_unit(block: nn.Module) -> Iterator[tuple[str, str]]:
    """Outermost modules that are units, those right below the block before those one level deeper."""
    level = [(name, module) for name, module in block.named_children()]
    for _ in range(_MAX_DEPTH):
        deeper = []
        for path, module in level:
            unit = _unit_of(path.rpartition(".")[2], module)
            if unit is not None:
                yield path, unit
            else:
                deeper += [(f"{path}.{name}", child) for name, child in module.named_children()]
        level = deeper


def _unit_of(attribute: str, module: nn.Module) -> str | None:
    """The unit that a module is by itself, or else the only kind of unit that it holds."""
    unit = _direct_unit(attribute, module)
    if unit is not None or isinstance(module, nn.ModuleList | nn.ModuleDict):
        return unit
    held = {_direct_unit(name.rpartition(".")[2], part) for name, part in module.named_modules() if name} - {None}
    return held.pop() if len(held) == 1 else None


def _direct_unit(attribute: str, module: nn.Module) -> str | None:
    """By name, or an MLP by its form: a sequence of linear layers without attention or convolution in it."""
    unit = _unit_by_name(attribute, module)
    if unit is None and isinstance(module, nn.Sequential) and _is_linear(module):
        parts = {_unit_by_name(name.rpartition(".")[2], part) for name, part in module.named_modules() if name}
        return None if parts & {ATTENTION, CROSS_ATTENTION} else MLP
    return unit


def _unit_by_name(attribute: str, module: nn.Module) -> str | None:
    if sum(parameter.ndim >= 2 for parameter in module.parameters()) < _MIN_MATRICES:
        return None
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        return None
    names = (attribute, type(module).__name__)
    # A plain sequence of layers that is called attention is a squeeze-and-excite gate (RegNet).
    looks_so = any(map(_ATTENTION.search, names)) and not isinstance(module, nn.Sequential)
    if looks_so or isinstance(module, nn.MultiheadAttention):
        return CROSS_ATTENTION if any(map(_CROSS.search, names)) else ATTENTION
    return MLP if any(map(_MLP.search, names)) else None


def _is_linear(module: nn.Module) -> bool:
    num_linear = sum(isinstance(part, nn.Linear) for part in module.modules())
    return num_linear >= _MIN_MATRICES and all(parameter.ndim <= 2 for parameter in module.parameters())
