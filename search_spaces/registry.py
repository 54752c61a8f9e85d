"""Encodings by name."""

from __future__ import annotations

from collections.abc import Callable

from search_spaces.choices import SearchChoices
from search_spaces.listed_space import ListedSpace
from search_spaces.per_block import per_block_space
from search_spaces.product_space import ProductSpace
from search_spaces.two_action import two_action_space

ENCODINGS: dict[str, Callable[[SearchChoices], ProductSpace]] = {
    "two_action": two_action_space,
    "per_block": per_block_space,
}


def encoding_of(choices: SearchChoices) -> str:
    """The encoding that suits a search: stages of a pipeline differ, so their blocks are placed one by one."""
    return "per_block" if choices.stage_borders else "two_action"


def make_space(name: str, choices: SearchChoices) -> ProductSpace | ListedSpace:
    """The space with the named encoding; where the choices list what is allowed, the space of that list.

    Raises:
        ValueError: No encoding has this name; the message lists those that exist.
    """
    if name not in ENCODINGS:
        raise ValueError(f"encoding {name!r} is unknown; known are {', '.join(ENCODINGS)}")
    return ENCODINGS[name](choices) if choices.allowed is None else ListedSpace(choices)
