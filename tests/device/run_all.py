"""Runs the tests of this folder on the accelerator that torch finds; writes outcomes and figures as one JSON file.

The checks run in a process of their own: a driver that takes its process down with it, or hangs, costs the one check
that it happened in. The report is written whatever becomes of them.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NO_DEVICE = 3
#: Kinds that there are checks of by name; each name is their marker, too. Any other one takes those of `OTHER`.
KINDS = ("cuda", "npu")
OTHER = "accelerator"
#: Seconds that all checks together may take, and that those of one process need to end when told to.
LIMIT_S, END_S = 450.0, 10.0

_FIND_DEVICE = """
import json, torch
device = torch.accelerator.current_accelerator(check_available=True)
kind = None if device is None else device.type
name = getattr(torch.get_device_module(kind), "get_device_name", lambda: kind)() if kind else None
print(json.dumps({"device_kind": kind, "device": name, "torch": torch.__version__}))
"""


@dataclass
class Progress:
    """What the processes have told so far.

    Attributes:
        checks: Outcomes by test.
        reasons_not_run: Tests that were not reached, and why.
    """

    checks: dict[str, dict[str, Any]] = field(default_factory=dict)
    reasons_not_run: dict[str, str] = field(default_factory=dict)


def main(output: Path) -> int:
    """Gives back the exit code."""
    start = time.monotonic()
    device, trouble = _find_device()
    if trouble is None and importlib.util.find_spec("pytest") is None:
        device, trouble = {}, 'pytest is not installed here: pip install -e ".[dev]"'
    kind = device.get("device_kind")
    progress = Progress()
    if kind is not None:
        _run_checks(kind if kind in KINDS else OTHER, progress, deadline=start + LIMIT_S)
    checks = [{**check, "name": _short(name)} for name, check in progress.checks.items()]
    not_run = [{"device_kind": each, "reason": trouble or _why_not(each, kind)} for each in KINDS if each != kind]
    not_run += [{"check": _short(name), "reason": reason} for name, reason in progress.reasons_not_run.items()]
    num_of = {outcome: sum(check["outcome"] == outcome for check in checks) for outcome in ("passed", "failed")}
    report = {
        "device_kind": kind,
        "device": device.get("device"),
        "python": platform.python_version(),
        "torch": device.get("torch"),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - start, 1),
        "num_passed": num_of["passed"],
        "num_failed": num_of["failed"],
        "not_run": not_run,
        "checks": checks,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=1) + "\n")
    print(
        f"{output}: {num_of['passed']} passed, {num_of['failed']} failed on {device.get('device') or 'no accelerator'}"
    )
    for check in checks:
        if check["outcome"] != "passed":
            last_line = str(check["reason"]).strip().splitlines()[-1]
            print(f"{check['outcome']}: {check['name']}: {last_line}")
    for each in not_run:
        print(f"not run here: {each.get('device_kind') or each['check']}, since {each['reason']}")
    if kind is None:
        return 1 if trouble else NO_DEVICE
    return 0 if num_of["passed"] and not num_of["failed"] and not progress.reasons_not_run else 1


def _short(name: str) -> str:
    return name.partition("::")[2] or name


def _find_device() -> tuple[dict[str, Any], str | None]:
    """What torch finds here, and what keeps it from saying so."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _FIND_DEVICE], capture_output=True, text=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        return {}, "torch did not say within 120 s which accelerator this machine has"
    if asked.returncode != 0:
        last_line = (asked.stderr.strip().splitlines() or [f"exit code {asked.returncode}"])[-1]
        return {}, f"torch did not say which accelerator this machine has: {last_line}"
    return json.loads(asked.stdout.splitlines()[-1]), None


def _why_not(kind: str, found: str | None) -> str:
    return f"torch finds {found or 'no accelerator'} on this machine, not {kind}"


def _run_checks(mark: str, progress: Progress, *, deadline: float) -> None:
    """Runs all checks with that mark, in one process after the other for as long as they die."""
    left: set[str] | None = None
    while left is None or left:
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder) / "outcomes.jsonl"
            told.touch()
            end = _one_process(mark, told, done=list(progress.checks), deadline=deadline)
            # Whoever died while writing has left half a line.
            entries = [json.loads(line) for line in told.read_text().splitlines(keepends=True) if line.endswith("\n")]
        before = len(progress.checks)
        collected = [name for entry in entries for name in entry.get("collected", ())]
        progress.checks.update({entry["check"]["name"]: entry["check"] for entry in entries if "check" in entry})
        begun = [entry["begun"] for entry in entries if "begun" in entry]
        if begun and begun[-1] not in progress.checks:
            progress.checks[begun[-1]] = _failed(begun[-1], end)
        elif not entries or (not collected and len(progress.checks) == before):
            progress.checks[mark] = _failed(mark, f"the checks did not begin: {end}")
            return
        left = set(collected) - set(progress.checks)
        if len(progress.checks) == before or time.monotonic() >= deadline:
            reason = f"the {LIMIT_S:g} s for all checks were up" if time.monotonic() >= deadline else end
            progress.reasons_not_run.update(dict.fromkeys(sorted(left), reason))
            return


def _one_process(mark: str, told: Path, *, done: list[str], deadline: float) -> str:
    """How it ended."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "outcomes", "-m", mark, str(HERE)]
    command += [argument for name in done for argument in ("--deselect", name)]
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "DEVICE_OUTCOMES": str(told)}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        code = process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        _end(process)
        return f"it had not ended when the {LIMIT_S:g} s for all checks were up"
    except BaseException:
        _end(process)
        raise
    return f"its process ended with signal {-code}" if code < 0 else f"its process ended with exit code {code}"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and whatever it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)


def _failed(name: str, reason: str) -> dict[str, Any]:
    return {"name": name, "outcome": "failed", "seconds": None, "reason": reason, "measured": {}}


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
