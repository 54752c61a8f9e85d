"""Puts saved-tensor hooks aside for a part of a region, so that what is saved there is saved as if outside of it.

torch has a stack of them and no public call that looks at it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

HookPair = tuple[Callable[..., Any], Callable[..., Any]]


def top_hooks() -> HookPair | None:
    """The hooks in force; None where there are none."""
    hooks: HookPair | None = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks


class HooksAside:
    """Hooks that were taken off the stack and are to be put back."""

    def __init__(self) -> None:
        self._taken: list[HookPair] = []

    def take_down_to(self, outer: HookPair | None) -> None:
        """Takes off all hooks that lie above these; all there are where that is None."""
        while (top := top_hooks()) is not None and not _is_same(top, outer):
            self._take(top)

    def take_one(self) -> None:
        """Takes off the hooks in force, if there are any."""
        top = top_hooks()
        if top is not None:
            self._take(top)

    def put_back(self) -> None:
        """Puts back what was taken, in its order; nothing the second time."""
        while self._taken:
            torch._C._autograd._push_saved_tensors_default_hooks(*self._taken.pop())

    def _take(self, top: HookPair) -> None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        self._taken.append(top)


def _is_same(hooks: HookPair, other: HookPair | None) -> bool:
    return other is not None and hooks[0] is other[0] and hooks[1] is other[1]
