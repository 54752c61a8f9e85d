"""Key-value caches for generation that a model hands to its blocks while it trains, where nothing reads them.

A block that stores keys and values in one stores them a second time when it is rebuilt, behind those of its forward:
they are held until the whole backward ends, and the block may see twice its tokens. So recomputed code gets no cache,
as when transformers recomputes by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn


def without_empty_caches(
    modules: Sequence[nn.Module], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The arguments of a call with None for each cache that holds nothing for the layers of these modules.

    What a cache holds before the call is part of the input (a prefix that is trained, say), so such a one stays.
    """
    if not any(map(is_cache, (*args, *kwargs.values()))):
        return args, kwargs
    layers = [getattr(part, "layer_idx", None) for module in modules for part in module.modules()]
    numbers = sorted({layer for layer in layers if isinstance(layer, int)})

    def kept(value: Any) -> Any:
        is_unread = bool(numbers) and is_cache(value) and all(_is_empty(value, number) for number in numbers)
        return None if is_unread else value

    return tuple(map(kept, args)), {name: kept(value) for name, value in kwargs.items()}


def is_cache(value: Any) -> bool:
    """True for the caches of transformers, which need not be installed, and for what looks like them."""
    return hasattr(value, "get_seq_length") and hasattr(value, "update")


def _is_empty(cache: Any, layer: int) -> bool:
    try:
        return bool(cache.get_seq_length(layer) == 0)
    except ValueError:  # What state space models and linear attention keep has no length.
        return not cache.has_previous_state(layer)
