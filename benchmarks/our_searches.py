"""Our own entries to the comparison of tools: studies run as a user runs them, and what they say for each cap."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tool_candidates import Candidate, NotRun, our_candidate

from search_spaces.policy_file import load_policy
from tuner.results_file import read_results

#: Everything that may be placed in a block and that is worth a trial on this work.
_ACTIONS = ["none", "attention", "mlp", "attention+mlp", "activation", "norm", "selective", "block", "segment"]
_COMPILED_ACTIONS = ["none", "block"]
#: Of the compiler, tried in place of a placement.
_BUDGETS = [0.75, 0.5, 0.25, 0.0]


@dataclass(frozen=True)
class OurSearches:
    """What came of them.

    Attributes:
        time_s: Wall time of all of them together; not a number where none was run.
        text: How they were run, for the page.
    """

    candidates: tuple[Candidate, ...]
    failures: tuple[NotRun, ...]
    time_s: float
    text: str


def searched(common: dict[str, Any], caps_bytes: Sequence[int], folder: Path, *, with_compiler: bool) -> OurSearches:
    """Runs one study for the model as it is, one for compiled blocks; asks each for the fastest within each cap.

    Args:
        common: Sections of search.yaml that both have.
        caps_bytes: Descending; the first one is that of the studies.
    """
    studies = [("as-it-is", {**common, "placement": {"actions": _ACTIONS}})]
    if with_compiler:
        model = {**common["model"], "compile": "blocks", "compile_memory_budget": _BUDGETS}
        studies.append(("compiled", {**common, "model": model, "placement": {"actions": _COMPILED_ACTIONS}}))
    candidates: dict[str, Candidate] = {}
    failures: list[NotRun] = []
    notes: list[str] = []
    total_s = 0.0
    for name, search in studies:
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**search, "memory_cap": f"{caps_bytes[0]}B", "output_dir": str(folder)}))
        start = time.monotonic()
        exit_code = _tune("run", str(path))
        elapsed_s = time.monotonic() - start
        total_s += elapsed_s
        if exit_code:
            failures.append(NotRun(f"our search of {name}", f"`tune run` ended with exit code {exit_code}"))
            continue
        num_trials = len(read_results(folder / name / "results.json").trials)
        notes.append(f"{name}: {num_trials} trials, {elapsed_s:.0f} s")
        for cap in caps_bytes:
            policy_file = folder / f"{name}-{cap}.yaml"
            export = ("export", str(folder / name), "--format", "policy", "--memory-cap", f"{cap}B")
            if _tune(*export, "-o", str(policy_file)) == 0:
                policy = load_policy(policy_file)
                candidates.setdefault(policy.key, our_candidate(policy))
    text = f"Our searches, one for all caps each: {'; '.join(notes) or 'none'}."
    return OurSearches(tuple(candidates.values()), tuple(failures), total_s, text)


def _tune(*arguments: str) -> int:
    command = [sys.executable, "-m", "tuner", *arguments]
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
