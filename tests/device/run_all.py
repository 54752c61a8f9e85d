"""Runs the tests of this folder on the accelerator that torch finds; writes outcomes and figures as one JSON file."""

from __future__ import annotations

import datetime
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
NO_DEVICE = 3
#: Kinds that there are checks of; each name is their marker, too.
KINDS = ("cuda", "npu")


class Outcomes:
    """A pytest plugin that keeps what each test came to and what it measured."""

    def __init__(self) -> None:
        self.checks: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        failure = report.longreprtext if report.failed else None
        reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else failure
        self.checks.append(
            {
                "name": report.nodeid.partition("::")[2],
                "outcome": report.outcome,
                "seconds": round(report.duration, 3),
                "reason": reason,
                "measured": dict(report.user_properties),
            }
        )


def main(output: Path) -> int:
    """Gives back the exit code."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    kind = None if accelerator is None else accelerator.type
    outcomes = Outcomes()
    start = time.monotonic()
    if kind in KINDS:
        pytest.main(["-q", "-p", "no:cacheprovider", "-m", kind, str(HERE)], plugins=[outcomes])
    name = None if kind is None else torch.get_device_module(kind).get_device_name()
    num_failed = sum(check["outcome"] == "failed" for check in outcomes.checks)
    report = {
        "device_kind": kind,
        "device": name,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - start, 1),
        "num_passed": sum(check["outcome"] == "passed" for check in outcomes.checks),
        "num_failed": num_failed,
        "not_run": [
            {"device_kind": each, "reason": f"torch finds {kind or 'no accelerator'} on this machine, not {each}"}
            for each in KINDS
            if each != kind
        ],
        "checks": outcomes.checks,
    }
    output.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{output}: {report['num_passed']} passed, {num_failed} failed on {name or 'no accelerator'}")
    for left_out in report["not_run"]:
        print(f"not run here: {left_out['device_kind']}, since {left_out['reason']}")
    if not outcomes.checks:
        return NO_DEVICE
    return 1 if num_failed else 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
