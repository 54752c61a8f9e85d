"""Ours against what exists: one model, one machine, one process, every candidate's steps in turn.

    python benchmarks/tools.py                        # searches, then measures all, and writes docs/tools.md
    python benchmarks/tools.py --smoke                # the same on a small model, without the compiler; writes nothing
    python benchmarks/tools.py --policies FOLDER      # policies of one's own (*.yaml) in place of the searches

Caps are shares of the plain step's peak. A tool stands under a cap with the fastest of its settings whose measured peak
is within it; a tool that has none there has no entry. Ours searches once for the model as it is and once for compiled
blocks, both under the largest cap; for the others the fastest trial within each is exported, as `tune export` does it.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich
import torch
from our_searches import OurSearches, searched
from tool_candidates import OURS, Candidate, NotRun, existing_tools, our_candidate, unusable_tools
from tool_report import Measured, Setup, figure, page, table

from runners.devices.base import Device
from runners.devices.registry import open_device
from runners.measure.speed_comparison import compare_speeds
from runners.measure.step_time import TimedRun, time_once
from runners.proof.randomness import seed_everything
from runners.rig import Rig, RigStep
from runners.trial import WorkloadSpec
from runners.workloads.base import Workload
from runners.workloads.load import load_workload
from search_spaces.policy_file import load_policy

CAPS = (0.90, 0.75, 0.60, 0.50, 0.40)
#: Versions of code that one process compiles: one for each budget and its backward.
_MOST_VERSIONS = 64
#: Rounds that are run even where time is short.
_MIN_ROUNDS = 3
DOCS = Path(__file__).resolve().parent.parent / "docs"


@dataclass(frozen=True)
class Work:
    """What is trained and how it is measured.

    Attributes:
        args: Of the built-in GPT.
        num_rounds: Steps of each candidate that count, where there is time for them.
        rounds_s: Seconds after which fewer rounds do.
        search_limit: ``search.time_limit`` of each of our searches.
    """

    args: dict[str, Any]
    sequence_length: int
    global_batch_size: int
    num_rounds: int
    rounds_s: float
    search_limit: str
    with_compiler: bool

    @property
    def micro_batch_sizes(self) -> tuple[int, ...]:
        sizes = range(self.global_batch_size, 0, -1)
        return tuple(size for size in sizes if self.global_batch_size % size == 0)

    @property
    def spec(self) -> WorkloadSpec:
        return WorkloadSpec(
            model_factory="runners.workloads.gpt:gpt", model_args=self.args, sequence_length=self.sequence_length
        )

    def search_file(self) -> dict[str, Any]:
        """What all of our searches of this work have in common."""
        return {
            "model": {"factory": self.spec.model_factory, "args": self.args},
            "batch": {"global_batch_size": self.global_batch_size, "sequence_length": self.sequence_length},
            "search": {"time_limit": self.search_limit},
        }


FULL = Work({"n_layer": 12, "n_embd": 256, "n_head": 8, "vocab_size": 4096}, 256, 8, 9, 420.0, "5m", True)
SMOKE = Work({"n_layer": 4, "n_embd": 64, "n_head": 2, "vocab_size": 256}, 64, 4, 3, 60.0, "30s", False)


class Contestant:
    """A candidate on a model of its own."""

    def __init__(self, candidate: Candidate, work: Work, workload: Workload, device: Device) -> None:
        before_bytes = device.live_bytes()
        self.candidate = candidate
        self._rig = Rig(workload, work.spec, device)
        self._device = device
        candidate.put_on(self._rig.model)
        seed_everything(0)
        num_micro_batches = work.global_batch_size // candidate.micro_batch_size
        self._micro_batches = [workload.make_batch(candidate.micro_batch_size) for _ in range(num_micro_batches)]
        start = time.monotonic()
        self._rig.step.run(self._micro_batches)
        self.first_step_s = time.monotonic() - start
        step = RigStep(self._rig, self._micro_batches)
        self.peak_bytes = device.measure_peak(step, live_bytes_before_trial=before_bytes).capped_bytes
        self.times: list[TimedRun] = []

    def take_step(self) -> None:
        self.times.append(time_once(lambda: self._rig.step.run(self._micro_batches), self._device))


class Contest:
    """All contestants of one work, and what did not get that far."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.device, self._workload = open_device(work.spec.device), load_workload(work.spec)
        self.contestants: list[Contestant] = []
        self.failures: list[NotRun] = []

    def enter(self, candidate: Candidate) -> Contestant | None:
        """Builds it, takes its first step and measures its peak; None where that failed."""
        try:
            contestant = Contestant(candidate, self._work, self._workload, self.device)
        except Exception as error:  # noqa: BLE001  # a tool that fails is a row of the table, not the end of it
            self._fail(candidate, error)
            return None
        self.contestants.append(contestant)
        say(f"{candidate.name}: {contestant.peak_bytes / 2**20:.1f} MiB, first step {contestant.first_step_s:.1f} s")
        return contestant

    def run(self) -> list[Measured]:
        """Every contestant's steps in turn, each round begun by another one."""
        start = time.monotonic()
        for number in range(self._work.num_rounds):
            if number >= _MIN_ROUNDS and time.monotonic() - start > self._work.rounds_s:
                break
            order = [*self.contestants[number:], *self.contestants[:number]]
            for contestant in order:
                try:
                    contestant.take_step()
                except Exception as error:  # noqa: BLE001  # as above
                    self.contestants.remove(contestant)
                    self._fail(contestant.candidate, error)
            say(f"round {number + 1}: {time.monotonic() - start:.0f} s")
        return [self._measured(contestant) for contestant in self.contestants]

    def _fail(self, candidate: Candidate, error: Exception) -> None:
        line = (str(error).strip().splitlines() or [""])[0]
        self.failures.append(NotRun(candidate.name, f"{type(error).__name__}: {line}"))

    def _measured(self, contestant: Contestant) -> Measured:
        plain = self.contestants[0]
        both = (contestant.times, plain.times)
        speed = compare_speeds(
            *([run.time_s for run in runs] for runs in both), [[run.processor_share for run in runs] for runs in both]
        )
        return Measured(
            tool=contestant.candidate.tool,
            setting=contestant.candidate.setting,
            micro_batch_size=contestant.candidate.micro_batch_size,
            peak_ratio=contestant.peak_bytes / plain.peak_bytes,
            peak_bytes=contestant.peak_bytes,
            time_ratio=1 / speed.value,
            time_ratio_spread=0.0 if contestant is plain else speed.standard_error / speed.value**2,
            first_step_s=contestant.first_step_s,
        )


def main() -> None:
    start = time.monotonic()
    options = _options()
    work = SMOKE if options.smoke else FULL
    torch._dynamo.config.recompile_limit = _MOST_VERSIONS
    contest = Contest(work)
    others = list(existing_tools("blocks", work.micro_batch_sizes, with_compiler=work.with_compiler))
    baseline = contest.enter(others[0])
    assert baseline is not None, "the plain step runs, or nothing does"
    ours = _given(options.policies) if options.policies else _search(work, baseline.peak_bytes)
    contest.failures += [*unusable_tools(), *ours.failures]
    for candidate in [*others[1:], *ours.candidates]:
        contest.enter(candidate)
    measured = contest.run()
    rich.print(table(measured, CAPS, {OURS: ours.time_s}))
    for failure in contest.failures:
        rich.print(f"not run: {failure.tool}: {failure.reason}")
    if not options.smoke:
        setup = Setup(
            machine=f"{contest.device.describe()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
            num_rounds=len(baseline.times),
            searches=ours.text,
            took_s=time.monotonic() - start,
        )
        (DOCS / "tools.md").write_text(page(measured, CAPS, contest.failures, {OURS: ours.time_s}, setup))
        (DOCS / "images" / "tools.svg").write_text(figure(measured))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a small model, few steps; writes nothing")
    parser.add_argument("--policies", type=Path, help="folder of policies (*.yaml) instead of our own searches")
    return parser.parse_args()


def say(text: str) -> None:
    rich.print(text, file=sys.stderr)


def _given(folder: Path) -> OurSearches:
    candidates = tuple(our_candidate(load_policy(path)) for path in sorted(folder.glob("*.yaml")))
    return OurSearches(candidates, (), math.nan, f"Our policies are those of {folder.name}, found before.")


def _search(work: Work, baseline_bytes: int) -> OurSearches:
    with tempfile.TemporaryDirectory() as folder:
        caps_bytes = [int(cap * baseline_bytes) for cap in CAPS]
        return searched(work.search_file(), caps_bytes, Path(folder), with_compiler=work.with_compiler)


if __name__ == "__main__":
    main()
