"""A pytest plugin that writes down each check as it happens, so that a process that died has told where.

One line of JSON each, into the file that DEVICE_OUTCOMES names: ``collected``, ``begun`` and ``check``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

_FILE = Path(os.environ["DEVICE_OUTCOMES"])


def _write(kind: str, value: object) -> None:
    with _FILE.open("a") as file:
        file.write(json.dumps({kind: value}) + "\n")


def pytest_collection_finish(session: pytest.Session) -> None:
    _write("collected", [item.nodeid for item in session.items])


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write("check", _outcome(report.nodeid, "failed", 0.0, report.longreprtext, {}))


def pytest_runtest_logstart(nodeid: str) -> None:
    _write("begun", nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.outcome == "passed":
        return
    reason = report.longreprtext if report.failed else None
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    _write("check", _outcome(report.nodeid, report.outcome, report.duration, reason, dict(report.user_properties)))


def _outcome(
    name: str, outcome: str, seconds: float, reason: str | None, measured: dict[str, object]
) -> dict[str, object]:
    return {
        "name": name,
        "outcome": outcome,
        "seconds": round(seconds, 3),
        "reason": reason,
        "measured": measured,
    }
