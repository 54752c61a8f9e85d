from __future__ import annotations

from types import SimpleNamespace

import pytest

from tuner.study import time_spent
from tuner.study.time_spent import TimeSpent


def test_every_second_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 30.0, 30.0, 95.0, 100.0, 105.0, 112.0])
    monkeypatch.setattr(time_spent, "time", SimpleNamespace(monotonic=lambda: next(now)))
    spent = TimeSpent(0.0)
    with spent.on("dry run"):
        pass
    with spent.on("trials"):
        pass
    with spent.on("dry run"):
        pass
    assert spent.text() == "took 112 s: dry run 25 s, trials 65 s, start, model and files 22 s"
