"""The modules of a model that lie outside of its blocks, and when in the forward pass they run."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from runners.diagnosis.places import Places
from runners.diagnosis.records import Stage


class OutsideModules:
    """Groups them by the outermost module that holds no block: an embedding, a head.

    Args:
        first_calls: Of each module, by path, how many blocks had begun when it first ran.
        num_block_calls: How many blocks run in a forward pass.
    """

    def __init__(self, model: nn.Module, places: Places, first_calls: Mapping[str, int], num_block_calls: int) -> None:
        self._paths = [path for path, _ in model.named_modules()]
        self._block_paths = places.block_paths
        self._first_calls = first_calls
        self._num_block_calls = num_block_calls

    def outermost(self, path: str) -> str:
        """Path of the outermost module around the one at ``path`` that holds no block; empty where each holds some."""
        parts = path.split(".")
        for length in range(1, len(parts) + 1):
            outer = ".".join(parts[:length])
            if outer and not any(block == outer or block.startswith(f"{outer}.") for block in self._block_paths):
                return outer
        return ""

    def stage(self, module: str, num_block_calls: int) -> Stage | None:
        """When a group runs first, or, of the model's own code, when the part runs that came after so many blocks."""
        if module:
            inside = [n for path, n in self._first_calls.items() if path == module or path.startswith(f"{module}.")]
            if not inside:
                return None
            num_block_calls = min(inside)
        if num_block_calls == 0:
            return "before"
        return "after" if num_block_calls >= self._num_block_calls else "between"

    @property
    def num_modules(self) -> int:
        return len(self._paths)

    def rank(self, module: str) -> int:
        """Position among the model's modules."""
        return self._paths.index(module)
