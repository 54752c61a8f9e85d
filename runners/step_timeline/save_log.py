"""What was kept and taken back in a step, each with the moment of a recording in which it happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from runners.measure.phases import Phase
from runners.step_timeline.saved_tensors import KeptView, kept_views
from runners.step_timeline.step_recording import StepRecorder


@dataclass(frozen=True)
class Save:
    """Something was kept.

    Attributes:
        point: Number of the moment.
        views: Empty where a recompute region dropped what an operator saved.
        region: Name of the call that begins a recompute region, which keeps what it was called with; None where an
            operator saved it.
        is_on_host: It was moved there, and waits there.
    """

    point: int
    views: tuple[KeptView, ...]
    region: str | None = None
    is_on_host: bool = False


@dataclass(frozen=True)
class Use:
    """Something was taken back.

    Attributes:
        save: Index of what was saved then; None for the inputs of a region, which are not asked for one by one.
    """

    point: int
    save: int | None
    views: tuple[KeptView, ...]


class SaveLog:
    """Watches saved tensors and module calls of one step; a `SavedTensorWatcher`.

    Args:
        region_heads: Names of the calls that begin a recompute region.
    """

    def __init__(self, recorder: StepRecorder, region_heads: set[str]) -> None:
        self.saves: list[Save] = []
        self.uses: list[Use] = []
        self._recorder = recorder
        self._region_heads = region_heads

    def saved(self, kept: tuple[KeptView, ...], *, is_on_host: bool = False) -> int:
        self.saves.append(Save(self._recorder.mark_point(), kept, is_on_host=is_on_host))
        return len(self.saves) - 1

    def used(self, ticket: int, taken: tuple[KeptView, ...]) -> None:
        self.uses.append(Use(self._recorder.mark_point(), ticket, taken))

    def calling(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A module is called; its call is marked, and what a region keeps of its arguments is logged."""
        if name in self._region_heads and torch.is_grad_enabled():
            views = kept_views((args, dict(kwargs)))
            point = self._recorder.mark_point()
            if self._recorder.phase is Phase.FORWARD:
                self.saves.append(Save(point, views, region=name))
            else:
                self.uses.append(Use(point, None, views))
        return self._recorder.call(name)

    def forget(self) -> None:
        """Drops what was logged so far."""
        self.saves.clear()
        self.uses.clear()
