"""Does a busy machine fool the ranking? Two policies whose true difference is known are tried again and again.

    python benchmarks/noise.py                  # 20 tries of each pair while a hog loads the machine on and off
    python benchmarks/noise.py --no-hog         # the same in the quiet

A try is what a study does with two policies: a trial of each through the real runner, then the playoff. The truth is
measured first, without the hog, in a playoff many times as long.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import rich
from cpu_hog import PERIOD_S, cpu_hog
from rich.table import Table

from runners.base import TrialRunner
from runners.measure.speed_comparison import compare_speeds
from runners.measure.spread import Center
from runners.ray_runner import RayRunner, RayRunnerOptions
from runners.trial import MeasurementSpec, PlayoffSpec, TrialResult, TrialSpec, WorkloadSpec
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region
from tuner.objective import Objective
from tuner.pareto import Standings, compare
from tuner.playoff import playoff_entrants, run_playoff
from tuner.single_trial import run_single_trial
from tuner.speed_ratio import STANDARD_ERRORS_OF_A_TIE, Playoff, Ratio

NUM_BLOCKS = 6
WORKLOAD = WorkloadSpec(
    model_factory="runners.workloads.gpt:gpt",
    model_args={"n_layer": NUM_BLOCKS, "n_embd": 64, "n_head": 4, "vocab_size": 512},
    sequence_length=64,
    device="cpu",
)
BATCH = BatchShape.split(global_batch_size=8, micro_batch_size=4)
#: Long enough for a playoff to end by itself.
_TIMEOUT_S = 300.0
Outcome = Literal["right", "wrong", "tie"]


@dataclass(frozen=True)
class Pair:
    """Two policies, each the blocks whose MLP it recomputes. One is faster by what the further blocks cost."""

    name: str
    first: tuple[int, int]
    second: tuple[int, int]

    def policies(self) -> tuple[RecomputePolicy, RecomputePolicy]:
        return _recomputing_mlps(*self.first), _recomputing_mlps(*self.second)


#: One MLP of six more or less is about 5 % of a step. The work of the equal ones is the same, in other blocks.
PAIRS = (Pair("about 5 % apart", (0, 0), (0, 1)), Pair("equal", (1, 2), (3, 4)))


@dataclass(frozen=True)
class Try:
    """What one try said: how many times as fast the first policy is as the second.

    Attributes:
        by_trials: From the two trials alone.
        ratio: What the study would say: from the playoff, where both took part.
        num_rounds: 0 where one of them was left out of the playoff.
        load: Average number of running processes over the last minute, at the end.
    """

    pair: str
    truth: float
    by_trials: Ratio
    ratio: Ratio
    num_rounds: int
    num_steps: tuple[int, int]
    wall_time_s: float
    load: float
    step_times_s: tuple[tuple[float, ...], ...]

    def outcome(self, is_equal: bool) -> Outcome:
        if self.ratio.is_tie:
            return "tie"
        return "right" if not is_equal and (self.ratio.value > 1) == (self.truth > 1) else "wrong"

    @property
    def covers_truth(self) -> bool:
        error = STANDARD_ERRORS_OF_A_TIE * (self.ratio.standard_error or 0.0)
        return abs(self.ratio.value - self.truth) <= error


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Counts how often a busy machine fools the ranking of two policies.")
    parser.add_argument("--tries", type=int, default=20, help="of each pair")
    parser.add_argument("--truth-rounds", type=int, default=150, help="of the long playoff that gives the truth")
    parser.add_argument("--truth", metavar="FILE", help="of an earlier run's --record: its truth is taken over")
    parser.add_argument("--no-hog", action="store_true", help="leave the machine as it is")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="that the hog loads at most")
    parser.add_argument("--seed", type=int, default=0, help="of the hog's periods")
    parser.add_argument("--record", metavar="FILE", help="write every try there, one line of JSON each")
    options = parser.parse_args(arguments)
    hog = nullcontext() if options.no_hog else cpu_hog(seed=options.seed, cores=options.cores)
    with _open_runner() as runner:
        truths = _read_truths(options.truth) or {
            pair.name: _truth(runner, pair, options.truth_rounds).value for pair in PAIRS
        }
        tries = list(_tries(runner, truths, hog, options.tries, options.record))
    load = "no hog" if options.no_hog else _describe_hog(options.seed, options.cores)
    rich.print(table_of(tries, title=f"{os.cpu_count()} cores, {load}"))
    return 0


def table_of(tries: Sequence[Try], *, title: str) -> Table:
    """One row per pair."""
    table = Table(title=title)
    names = ("pair", "truth", "tries", "right", "wrong", "tie", "truth within 2 errors", "error", "rounds", "load")
    for name in (*names, "wall time of a try"):
        table.add_column(name, justify="left" if name == "pair" else "right")
    for pair in PAIRS:
        mine = [each for each in tries if each.pair == pair.name]
        if not mine:
            continue
        outcomes = [each.outcome(pair.name == "equal") for each in mine]
        table.add_row(
            pair.name,
            f"{mine[0].truth:.3f}x",
            str(len(mine)),
            *(f"{outcomes.count(kind)}" for kind in ("right", "wrong", "tie")),
            f"{sum(each.covers_truth for each in mine)}",
            f"+-{statistics.median((each.ratio.standard_error or 0.0) / each.ratio.value for each in mine):.1%}",
            f"{statistics.median(each.num_rounds for each in mine):.0f}",
            f"{statistics.median(each.load for each in mine):.1f}",
            f"{statistics.median(each.wall_time_s for each in mine):.1f} s",
        )
    return table


@contextmanager
def _open_runner() -> Iterator[RayRunner]:
    runner = RayRunner(RayRunnerOptions())
    try:
        runner.open()
        yield runner
    finally:
        runner.close()


def _truth(runner: TrialRunner, pair: Pair, num_rounds: int) -> Center:
    spec = PlayoffSpec(
        policies=pair.policies(),
        workload=WORKLOAD,
        timeout_s=_TIMEOUT_S,
        min_rounds=num_rounds,
        max_rounds=num_rounds,
    )
    result = runner.playoff(spec)
    if result.failure is not None:
        raise SystemExit(f"noise: the playoff that gives the truth failed: {result.failure}")
    first_s, second_s = result.step_times_s
    center = compare_speeds(first_s, second_s)
    print(
        f"truth, {pair.name}: {center.value:.4f} +-{center.standard_error:.4f} over {len(first_s)} rounds of steps of "
        f"{statistics.median(first_s) * 1e3:.0f} ms, load {os.getloadavg()[0]:.1f}",
        file=sys.stderr,
        flush=True,
    )
    return center


def _tries(
    runner: TrialRunner,
    truths: Mapping[str, float],
    hog: AbstractContextManager[None],
    num_tries: int,
    record: str | None,
) -> Iterator[Try]:
    with hog:
        for number in range(num_tries):
            for pair in PAIRS:
                done = _try(runner, pair, truths[pair.name], swapped=number % 2 == 1)
                if record is not None:
                    with Path(record).open("a") as file:
                        file.write(json.dumps(_as_json(done)) + "\n")
                outcome = done.outcome(pair.name == "equal")
                print(f"try {number}, {pair.name}: {_text(done)}: {outcome}", file=sys.stderr, flush=True)
                yield done


def _try(runner: TrialRunner, pair: Pair, truth: float, *, swapped: bool) -> Try:
    """Runs both trials, the second one first where ``swapped``, and their playoff."""
    start = time.monotonic()
    policies = pair.policies()
    results: dict[int, TrialResult] = {}
    for number in (1, 0) if swapped else (0, 1):
        results[number] = run_single_trial(runner, _spec(number, policies[number]))
        if results[number].relative_speed is None:
            raise SystemExit(f"noise: trial of {policies[number].summary()} failed: {results[number].reason}")
    standings = Standings(Objective(memory_cap_bytes=2**40, proof_required=False))
    for result in results.values():
        standings.add(result)
    entrants = playoff_entrants(standings, None)
    playoff = None
    if len(entrants) > 1:
        playoff = run_playoff(runner, entrants, WORKLOAD, time_limit_s=4 * _TIMEOUT_S, timeout_s=_TIMEOUT_S)
    if isinstance(playoff, str):
        raise SystemExit(f"noise: the playoff failed: {playoff}")
    by_trials = compare(results[0], results[1])
    assert by_trials is not None, "both have a speed"
    return Try(
        pair=pair.name,
        truth=truth,
        by_trials=by_trials,
        ratio=(None if playoff is None else playoff.ratio(0, 1)) or by_trials,
        num_rounds=0 if playoff is None else len(playoff.step_times_s[0]),
        num_steps=(results[0].num_steps or 0, results[1].num_steps or 0),
        wall_time_s=time.monotonic() - start,
        load=os.getloadavg()[0],
        step_times_s=() if playoff is None else _in_order(playoff),
    )


def _spec(number: int, policy: RecomputePolicy) -> TrialSpec:
    smallest = BatchShape.split(global_batch_size=BATCH.global_batch_size, micro_batch_size=1)
    return TrialSpec(
        trial_number=number,
        policy=policy,
        workload=WORKLOAD,
        measurement=MeasurementSpec(verify=False, max_steps=12),
        reference=RecomputePolicy(smallest),
        timing_budget_s=10.0,
        timeout_s=_TIMEOUT_S,
    )


def _recomputing_mlps(first: int, last: int) -> RecomputePolicy:
    units = (("attention", "attn"), ("mlp", "mlp"))
    placement = BlockListPlacement("blocks", NUM_BLOCKS, units, (Region(first, last, "mlp"),))
    return RecomputePolicy(BATCH, (placement,)).canonical()


def _in_order(playoff: Playoff) -> tuple[tuple[float, ...], ...]:
    return tuple(playoff.step_times_s[playoff.trials.index(number)] for number in (0, 1))


def _as_json(done: Try) -> dict[str, object]:
    ratios = {name: (r.value, r.standard_error) for name, r in (("by_trials", done.by_trials), ("ratio", done.ratio))}
    return {**done.__dict__, **ratios}


def _read_truths(file: str | None) -> dict[str, float]:
    if file is None:
        return {}
    return {line["pair"]: line["truth"] for line in map(json.loads, Path(file).read_text().splitlines())}


def _text(done: Try) -> str:
    error = 0.0 if done.ratio.standard_error is None else done.ratio.standard_error
    by_trials = f"{done.by_trials.value:.3f} +-{done.by_trials.standard_error or 0.0:.3f} by {done.num_steps} steps"
    return f"{by_trials}, {done.ratio.value:.3f} +-{error:.3f} after {done.num_rounds} rounds, load {done.load:.1f}"


def _describe_hog(seed: int, cores: int) -> str:
    return f"up to {cores} of them loaded on and off for {PERIOD_S[0]} to {PERIOD_S[1]} s, seed {seed}"


if __name__ == "__main__":
    sys.exit(main())
