"""Ends the process at a chosen point of its own code: at the nth time that a chosen function is entered."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
#: Where a driver keeps something, or decides what to keep: our own rooms, and what they write with.
_OURS = tuple(
    f"{_ROOT}/{room}" for room in ("tuner/", "mlflow_config/", "runners/replay_runner", "search_spaces/whole")
)
_STORES = (
    "/optuna/storages/_rdb/",
    "/optuna/study/",
    "/mlflow/store/tracking/sqlalchemy_store.py",
    "/mlflow/tracking/client.py",
    "/sqlalchemy/engine/default.py",
)


class KillPoints:
    """Watches which functions are entered, in every thread that starts after `watch`.

    Args:
        site: A function as `counts` names it; None only counts.
        occurrence: The time, from 1, at which entering it sends the signal.
    """

    def __init__(self, site: str | None, occurrence: int, number: int) -> None:
        self.counts: Counter[str] = Counter()
        self._site = site
        self._occurrence = occurrence
        self._number = number
        self._names: dict[CodeType, str | None] = {}

    def watch(self) -> None:
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    def _see(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            name = self._name_of(frame.f_code)
        elif event == "c_call" and frame.f_code.co_filename.startswith(_OURS):
            name = f"{self._name_of(frame.f_code)} -> {argument.__qualname__}"
        else:
            return
        if name is None:
            return
        self.counts[name] += 1
        if name == self._site and self.counts[name] == self._occurrence:
            os.kill(os.getpid(), self._number)

    def _name_of(self, code: CodeType) -> str | None:
        if code not in self._names:
            file = code.co_filename
            is_watched = file.startswith(_OURS) or any(part in file for part in _STORES)
            short = "/".join(Path(file).parts[-2:])
            self._names[code] = f"{short}:{code.co_qualname}" if is_watched else None
        return self._names[code]
