"""Ours against what exists: one model, one machine, every candidate's steps in turn.

    python benchmarks/tools.py                       # searches, then measures all: docs/tools.md and its figure
    python benchmarks/tools.py benchmarks/works/bert.yaml --page docs/tools-bert.md
    python benchmarks/tools.py my-search.yaml        # your model, batch and optimizer; the page lies beside the record
    python benchmarks/tools.py --minutes 10          # in calls of 10 minutes: each goes on where the last one stopped
    python benchmarks/tools.py --smoke               # a small model without the compiler

Caps are shares of the plain step's peak. A tool stands under a cap with the fastest of its settings whose measured peak
is within it; a tool that has none there has no entry. Ours searches once each for the model as it is, its blocks
compiled and all of it compiled, under the largest cap; for the other caps the fastest trial within each is exported, as
`tune export` does it.

Every figure is kept in record.json of the folder as soon as it is measured. Exit code 3: not done yet, call it again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import rich
import torch
from our_searches import exported, our_searches, run_search
from tool_candidates import OURS, Candidate, existing_tools, unusable_tools
from tool_contest import Contest, Deadline, OutOfTimeError
from tool_figure import figure
from tool_record import OtherWorkError, SearchNote, ToolRecord
from tool_report import Failure, Measured, Setup, Versus, best_within, page, table
from tool_work import Work

from runners.base import RunnerError
from runners.cluster.agents import worker_environment
from runners.cluster.nodes import CPU
from runners.devices.base import Device
from runners.devices.registry import open_device
from tuner.user_error import UserError

CAPS = (0.90, 0.75, 0.60, 0.50, 0.40)
ROOT = Path(__file__).resolve().parent.parent
WORKS = ROOT / "benchmarks" / "works"
PAGE = ROOT / "docs" / "tools.md"
#: Steps of each candidate that count.
_NUM_ROUNDS, _NUM_SMOKE_ROUNDS = 15, 3
#: Versions of code that one process compiles: one for each budget and its backward.
_MOST_VERSIONS = 64
_NOT_DONE = 3


class Comparison:
    """One work, and the record of it in a folder."""

    def __init__(self, work: Work, folder: Path, deadline: Deadline) -> None:
        self._work = work
        self._folder = folder
        self._deadline = deadline
        self._start = time.monotonic()
        device = open_device(work.spec.device)
        self._record = ToolRecord.opened(folder / "record.json", _identity(work, device))
        self._contest = Contest(work, device, self._record, save=self._save, say=say)
        self._took_before_s = self._record.took_s
        self._others = list(existing_tools(work.blocks, work.micro_batch_sizes, with_compiler=work.with_compiler))
        self._plain = self._others[0]

    def run(self) -> None:
        """Measures what is left to measure.

        Raises:
            OutOfTimeError: There is more than the deadline allows.
        """
        self._contest.enter(self._plain)
        for name, search in our_searches(self._work).items():
            note = self._record.searches.setdefault(name, SearchNote())
            if not note.is_over:
                self._deadline.check()
                run_search(name, search, self._caps_bytes()[0], self._folder, note, self._save, self._deadline)
        for candidate in self._candidates()[1:]:
            self._deadline.check()
            self._contest.enter(candidate)
        self._contest.run_rounds(self._deadline)

    def measured(self) -> list[Measured]:
        """Every candidate that took its steps, the plain one first."""
        plain_bytes = self._record.peaks[self._plain.name].peak_bytes
        candidates = [each for each in self._candidates() if each.name not in self._record.failures]
        names = {each.name for each in candidates}
        return [
            Measured(
                tool=candidate.tool,
                setting=candidate.setting,
                micro_batch_size=candidate.micro_batch_size,
                peak_bytes=peak.peak_bytes,
                peak_ratio=peak.peak_bytes / plain_bytes,
                speed=self._record.speed(candidate.name, self._plain.name),
                first_step_s=peak.first_step_s,
                astray=self._record.astray.get(candidate.name),
                is_compared=candidate.trains_as in names,
            )
            for candidate in candidates
            for peak in [self._record.peaks[candidate.name]]
        ]

    def versus(self, measured: list[Measured]) -> list[Versus]:
        """Ours beside the best of the others under each cap where both have a setting."""
        pairs = []
        for cap in CAPS:
            ours = best_within([each for each in measured if each.tool == OURS], cap)
            other = best_within([each for each in measured if each.tool != OURS], cap)
            if ours is not None and other is not None:
                speed = self._record.speed(ours.name, other.name)
                pairs.append(Versus(cap, ours, other, speed, len(self._record.rounds)))
        return pairs

    def search_s(self) -> float:
        return sum(note.time_s for note in self._record.searches.values())

    def failures(self) -> list[Failure]:
        searches = {f"our search {name}": note.failure for name, note in self._record.searches.items() if note.failure}
        named = {**searches, **self._record.failures}
        return [*unusable_tools(), *(Failure(name, reason) for name, reason in named.items())]

    def setup(self, command: str) -> Setup:
        """How it was measured.

        Args:
            command: That measures all of it anew.
        """
        notes = [
            f"{name}: {note.num_trials} trials in {note.time_s:.0f} s"
            for name, note in self._record.searches.items()
            if note.num_trials is not None
        ]
        return Setup(
            command=command,
            work=self._work.name,
            machine=", ".join(str(value) for key, value in self._record.identity.items() if key != "work"),
            num_rounds=len(self._record.rounds),
            searches=f"Our searches, one for all caps each: {'; '.join(notes) or 'none'}. They look for the fastest "
            f"within {CAPS[0]:.0%}; within less stands the fastest that they have measured, and one under that "
            "cap would look further.",
            took_s=self._record.took_s,
        )

    def _caps_bytes(self) -> list[int]:
        plain = self._record.peaks[self._plain.name].peak_bytes
        return [int(cap * plain) for cap in CAPS]

    def _candidates(self) -> list[Candidate]:
        """Those of others, then ours."""
        ours = {
            candidate.name: candidate
            for name, note in self._record.searches.items()
            if note.is_over and note.failure is None
            for candidate in exported(name, self._caps_bytes(), self._folder)
        }
        return [*self._others, *ours.values()]

    def _save(self) -> None:
        self._record.took_s = self._took_before_s + time.monotonic() - self._start
        self._record.save(self._folder / "record.json")


def main() -> int:
    options = _options()
    _take_environment_of_trials()
    name = "tools-smoke" if options.smoke else "tools" if options.search is None else f"tools-{options.search.stem}"
    folder = options.folder or Path("runs") / name
    is_of_docs = options.search is None and not options.smoke
    path = options.page or (PAGE if is_of_docs else folder / "tools.md")
    image = path.parent / "images" / f"{path.stem}.svg"
    torch._dynamo.config.recompile_limit = _MOST_VERSIONS
    at_s = None if options.minutes is None else time.monotonic() + 60 * options.minutes
    try:
        for needed in (folder, image.parent):
            needed.mkdir(parents=True, exist_ok=True)
        comparison = Comparison(_work(options), folder, Deadline(at_s))
        comparison.run()
    except (OtherWorkError, UserError, RunnerError) as error:
        say(str(error))
        return 2
    except OSError as error:
        say(f"{error.filename} cannot be written ({error.strerror}); name another --folder or --page")
        return 2
    except OutOfTimeError:
        say(f"not done yet; the same command goes on from {folder / 'record.json'}")
        return _NOT_DONE
    measured, search_s = comparison.measured(), {OURS: comparison.search_s()}
    rich.print(table(measured, CAPS, search_s))
    arguments = [] if options.search is None else [str(options.search)]
    arguments += [] if options.page is None else ["--page", str(options.page)]
    command = " ".join(["python benchmarks/tools.py", *arguments])
    versus, failures = comparison.versus(measured), comparison.failures()
    path.write_text(page(measured, CAPS, versus, failures, search_s, comparison.setup(command), image.name))
    image.write_text(figure([each for each in measured if each.astray is None], CAPS, OURS))
    say(f"written: {path}")
    return 0


def _work(options: argparse.Namespace) -> Work:
    if options.smoke:
        return Work.read(WORKS / "smoke.yaml", num_rounds=_NUM_SMOKE_ROUNDS, with_compiler=False)
    return Work.read(options.search or WORKS / "gpt.yaml", num_rounds=_NUM_ROUNDS, with_compiler=True)


def _take_environment_of_trials() -> None:
    """Starts this script anew where threads are not as many, or do not wait, as in the trials of our searches."""
    wanted = worker_environment({CPU: float(os.cpu_count() or 1)})
    # The scripts of this folder import one another.
    del wanted["PYTHONSAFEPATH"]
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})


def _identity(work: Work, device: Device) -> dict[str, Any]:
    """What figures of two calls must share to stand in one table."""
    return {"work": repr(work), "device": device.describe(), "torch": f"torch {torch.__version__}"}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("search", type=Path, nargs="?", help="a search file; default: that of docs/tools.md")
    parser.add_argument("--smoke", action="store_true", help="a small model, few steps; leaves docs/ alone")
    parser.add_argument("--minutes", type=float, help="stop after this long; the next call goes on")
    parser.add_argument(
        "--folder", type=Path, help="of the record and our studies; default: runs/tools, and its name for a search file"
    )
    parser.add_argument("--page", type=Path, help="where to write it; default: docs/tools.md, or the folder for others")
    return parser.parse_args()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
