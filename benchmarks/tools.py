"""Ours against what exists: one model, one machine, one process, every candidate's steps in turn.

    python benchmarks/tools.py                        # searches under each cap, measures all, writes docs/tools.md
    python benchmarks/tools.py --smoke                # the same on a small model, without the compiler; writes nothing
    python benchmarks/tools.py --policies FOLDER      # policies of one's own (*.yaml) in place of the searches

Caps are shares of the plain step's peak. A tool stands under a cap with the fastest of its settings whose measured peak
is within it; a tool that has none there has no entry.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rich
import torch
import yaml
from tool_candidates import Candidate, NotRun, existing_tools, our_candidate, unusable_tools
from tool_report import Measured, figure, page, table

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
DOCS = Path(__file__).resolve().parent.parent / "docs"


@dataclass(frozen=True)
class Work:
    """What is trained and how it is measured.

    Attributes:
        args: Of the built-in GPT.
        num_rounds: Steps of each candidate that count.
        search_limit: ``search.time_limit`` of each of our searches.
    """

    args: dict[str, Any]
    sequence_length: int
    global_batch_size: int
    num_rounds: int
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


FULL = Work({"n_layer": 12, "n_embd": 256, "n_head": 8, "vocab_size": 4096}, 256, 8, 9, "15m", True)
SMOKE = Work({"n_layer": 4, "n_embd": 64, "n_head": 2, "vocab_size": 256}, 64, 4, 3, "1m", False)


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
        with candidate.compiling():
            self._rig.step.run(self._micro_batches)
        self.first_step_s = time.monotonic() - start
        step = RigStep(self._rig, self._micro_batches)
        self.peak_bytes = device.measure_peak(step, live_bytes_before_trial=before_bytes).capped_bytes

    def timed_step(self) -> TimedRun:
        return time_once(lambda: self._rig.step.run(self._micro_batches), self._device)


def main() -> None:
    options = _options()
    work = SMOKE if options.smoke else FULL
    torch._dynamo.config.recompile_limit = _MOST_VERSIONS
    device, workload = open_device(work.spec.device), load_workload(work.spec)
    contestants: list[Contestant] = []
    failures: list[NotRun] = unusable_tools()

    def enter(candidate: Candidate) -> Contestant | None:
        try:
            contestants.append(Contestant(candidate, work, workload, device))
        except Exception as error:  # noqa: BLE001  # a tool that fails is a row of the table, not the end of it
            line = (str(error).strip().splitlines() or [""])[0]
            failures.append(NotRun(candidate.name, f"{type(error).__name__}: {line}"))
            return None
        contestant = contestants[-1]
        _say(f"{candidate.name}: {contestant.peak_bytes / 2**20:.1f} MiB, first step {contestant.first_step_s:.1f} s")
        return contestant

    others = list(existing_tools("blocks", work.micro_batch_sizes, with_compiler=work.with_compiler))
    baseline = enter(others[0])
    assert baseline is not None, "the plain step runs, or nothing does"
    ours = _given(options.policies) if options.policies else _searched(work, baseline.peak_bytes)
    for candidate in [*others[1:], *ours]:
        enter(candidate)
    measured = _measure(contestants, work.num_rounds)
    rich.print(table(measured, CAPS))
    for failure in failures:
        rich.print(f"not run: {failure.tool}: {failure.reason}")
    if not options.smoke:
        threads = f"{device.describe()}, torch {torch.__version__}"
        (DOCS / "tools.md").write_text(page(measured, CAPS, failures, machine=threads, num_rounds=work.num_rounds))
        (DOCS / "images" / "tools.svg").write_text(figure(measured))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a small model, few steps; writes nothing")
    parser.add_argument("--policies", type=Path, help="folder of policies (*.yaml) instead of our own searches")
    return parser.parse_args()


def _say(text: str) -> None:
    rich.print(text, file=sys.stderr)


def _given(folder: Path) -> list[Candidate]:
    return [our_candidate(load_policy(path), None) for path in sorted(folder.glob("*.yaml"))]


def _searched(work: Work, baseline_bytes: int) -> list[Candidate]:
    """The answer of a search under each cap, as a user would run it."""
    candidates = []
    with tempfile.TemporaryDirectory() as folder:
        for cap in CAPS:
            study = f"cap-{cap * 100:.0f}"
            _say(f"searching under {cap:.0%} of the plain peak")
            path = Path(folder) / f"{study}.yaml"
            path.write_text(yaml.safe_dump(_search_file(study, work, int(cap * baseline_bytes), folder)))
            start = time.monotonic()
            command = [sys.executable, "-m", "tuner", "run", str(path), "--json"]
            subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
            elapsed_s = time.monotonic() - start
            policy = Path(folder) / "runs" / study / "policy.yaml"
            if policy.exists():
                candidates.append(our_candidate(load_policy(policy), elapsed_s))
            else:
                _say(f"the search under {cap:.0%} found nothing that fits")
    return candidates


def _search_file(study: str, work: Work, cap_bytes: int, folder: str) -> dict[str, Any]:
    return {
        "study": study,
        "model": {"factory": work.spec.model_factory, "args": work.args},
        "batch": {"global_batch_size": work.global_batch_size, "sequence_length": work.sequence_length},
        "memory_cap": f"{cap_bytes}B",
        "placement": {"actions": ["none", "attention", "mlp", "attention+mlp", "activation", "block", "segment"]},
        "search": {"time_limit": work.search_limit},
        "output_dir": str(Path(folder) / "runs"),
    }


def _measure(contestants: Sequence[Contestant], num_rounds: int) -> list[Measured]:
    """Every contestant's steps in turn, each round begun by another one."""
    times: list[list[float]] = [[] for _ in contestants]
    shares: list[list[float]] = [[] for _ in contestants]
    for number in range(num_rounds):
        for offset in range(len(contestants)):
            index = (number + offset) % len(contestants)
            timed = contestants[index].timed_step()
            times[index].append(timed.time_s)
            shares[index].append(timed.processor_share)
    measured = []
    for index, contestant in enumerate(contestants):
        speed = compare_speeds(times[index], times[0], [shares[index], shares[0]])
        measured.append(
            Measured(
                tool=contestant.candidate.tool,
                setting=contestant.candidate.setting,
                micro_batch_size=contestant.candidate.micro_batch_size,
                peak_ratio=contestant.peak_bytes / contestants[0].peak_bytes,
                peak_bytes=contestant.peak_bytes,
                time_ratio=1 / speed.value,
                time_ratio_spread=speed.standard_error / speed.value**2,
                search_time_s=contestant.candidate.search_time_s,
                first_step_s=contestant.first_step_s,
            )
        )
    return measured


if __name__ == "__main__":
    main()
