"""Whether a unit of a block is what recompute needs: one call inside each call of its block, and nobody else's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn

from runners.inspection.call_trace import Call, CallTrace, Target
from runners.inspection.unit_path import resolve_unit


class UnitUse:
    """What the traced passes did with one path below the blocks of a list.

    Args:
        path: As `runners.inspection.unit_path.resolve_unit` understands it; every block has it.
    """

    def __init__(self, path: str, blocks: Sequence[nn.Module]) -> None:
        self.path = path
        self._blocks = {id(block) for block in blocks}
        by_block = {id(block): resolve_unit(block, path) for block in blocks}
        self.targets: list[Target] = list(by_block.values())
        self.keys = {(id(owner), attribute) for owner, attribute in self.targets}
        self._most_in_one_call = 0
        self._num_outside = 0
        self._around: set[tuple[int, str]] = set()

    def observe(self, trace: CallTrace) -> None:
        """Adds one forward pass."""
        per_block_call: Counter[int] = Counter()
        for call in trace.calls_of(self.targets):
            block_call = self._block_call_around(call)
            if block_call is None:
                self._num_outside += 1
            else:
                per_block_call[id(block_call)] += 1
        self._most_in_one_call = max(self._most_in_one_call, *per_block_call.values(), 0)

    def problem(self) -> str | None:
        """Why the path is no unit, as the end of a sentence; None where it is one."""
        if len(self.keys) < len(self._blocks):
            return "is one module in several blocks"
        if self._num_outside:
            return "is called outside of its block"
        if self._most_in_one_call == 0:
            return "is not called by the block"
        if self._most_in_one_call > 1:
            return f"is called {self._most_in_one_call} times by one call of the block"
        return None

    def is_inside(self, other: UnitUse) -> bool:
        """True where this unit was called by the other one."""
        return self is not other and bool(self._around & other.keys)

    def _block_call_around(self, call: Call) -> Call | None:
        for around in call.around():
            if id(around.owner) in self._blocks and around.attribute == "forward":
                return around
            self._around.add((id(around.owner), around.attribute))
        return None
