"""Our own entries to the comparison of tools: studies run as a user runs them, and what they say for each cap."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from tool_candidates import BLOCK_BUDGETS, MODEL_BUDGETS, Candidate, our_candidate
from tool_contest import Deadline, OutOfTimeError
from tool_record import SearchNote
from tool_work import Work

from search_spaces.policy_file import load_policy
from tuner.results_file import read_results
from tuner.search_file.duration import MAX_DURATION_S

#: What is placed in compiled code; of the compiler's budgets those that it is measured with itself are tried, too.
_COMPILED_ACTIONS = ["none", "block"]
_BUDGETS = {"blocks": BLOCK_BUDGETS, "model": MODEL_BUDGETS}
#: Times the time limit of the others: a trial of a whole model compiles for minutes.
_TIME_FOR_WHOLE_MODEL = 2
_INTERRUPTED = 130


def our_searches(work: Work) -> dict[str, dict[str, Any]]:
    """The search files by the names of their studies: the model as it is, its blocks compiled, all of it compiled."""
    searches = {"as-it-is": work.search}
    if work.with_compiler:
        placement = {**work.search.get("placement", {}), "actions": _COMPILED_ACTIONS}
        for compiled, budgets in _BUDGETS.items():
            below_all = [budget for budget in budgets if budget < 1]
            model = {**work.search["model"], "compile": compiled, "compile_memory_budget": below_all}
            searches[f"compiled-{compiled}"] = {**work.search, "model": model, "placement": placement}
        limit_s = min(_TIME_FOR_WHOLE_MODEL * work.search_time_limit_s, MAX_DURATION_S)
        of_search = {**work.search.get("search", {}), "time_limit": f"{limit_s:.3f}s"}
        searches["compiled-model"] = {**searches["compiled-model"], "search": of_search}
    return searches


def run_search(
    name: str,
    search: dict[str, Any],
    cap_bytes: int,
    folder: Path,
    note: SearchNote,
    save: Callable[[], None],
    deadline: Deadline,
) -> None:
    """Runs one study, or goes on with it, and notes what came of it.

    Raises:
        OutOfTimeError: It was interrupted, and goes on in the next call.
    """
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**search, "study": name, "memory_cap": f"{cap_bytes}B", "output_dir": str(folder)}))
    resume = ["--resume"] if (folder / name / "study.db").exists() else []
    start = time.monotonic()
    try:
        exit_code = _run_until([*_TUNE, "run", str(path), *resume], deadline)
    finally:
        note.time_s += time.monotonic() - start
        save()
    if exit_code == _INTERRUPTED:
        raise OutOfTimeError
    note.is_over = True
    if exit_code:
        note.failure = f"`tune run` ended with exit code {exit_code}"
    else:
        note.num_trials = len(read_results(folder / name / "results.json").trials)
    save()


def exported(name: str, caps_bytes: Sequence[int], folder: Path) -> Iterator[Candidate]:
    """The study's fastest policy within each cap, as `tune export` gives it; none where nothing fits."""
    for cap in caps_bytes:
        file = folder / f"{name}-{cap}.yaml"
        if not file.exists():
            export = ("export", str(folder / name), "--format", "policy", "--memory-cap", f"{cap}B", "-o", str(file))
            # That nothing fits is an answer.
            subprocess.run([*_TUNE, *export], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        if file.exists():
            yield our_candidate(load_policy(file))


_TUNE = (sys.executable, "-m", "tuner")


def _run_until(command: list[str], deadline: Deadline) -> int:
    """The exit code of the command, which is interrupted as with Ctrl-C when the time is over."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        return process.wait(timeout=deadline.left_s())
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        return process.wait()
    except BaseException:
        # Ctrl-C reaches both of us; the study closes itself first.
        process.wait()
        raise
