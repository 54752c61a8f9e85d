"""Samplers side by side on the same problems: tables recorded from real models, and made-up devices.

Each search is the loop of `tune run` itself, from the baseline on, one trial at a time or several. Only the device is
replaced, by a table or a formula, so the best policy is known and every search can be judged by it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from recorded_table import RecordedTable
from regret_figure import regret_html, regret_panels, regret_svg
from replay_search import run_search
from sampler_report import ProblemReport, paste, report_text
from search_metrics import SearchScore, regret_curve, score_search, summarize_searches
from search_problem import SearchProblem
from synthetic_device import DEVICE_KINDS, DeviceKind, SyntheticDevice
from table_file import read_table

from search_spaces.whole_file import write_whole
from tuner.memory_size import format_bytes, parse_memory_size
from tuner.sampling.registry import SAMPLERS
from tuner.user_error import UserError

_HERE = Path(__file__).resolve().parent
PAGE = _HERE.parent / "docs" / "samplers.md"
#: Parts of the page that the program writes, and whether their problems are recorded ones.
SECTIONS = {"recorded tables": True, "made-up devices": False}
_FIGURE = _HERE.parent / "docs" / "images" / "samplers.svg"
#: Seeds at most: a search of these takes half a minute, all of it the sampler's own work.
_MOST_SEEDS = {"gp": 5}


@dataclass(frozen=True)
class TableSource:
    """A table in a file, under its own cap or another one."""

    path: Path
    cap_bytes: int | None


@dataclass(frozen=True)
class Comparison:
    """What is to be run."""

    problems: tuple[TableSource | DeviceKind, ...]
    samplers: tuple[str, ...]
    num_seeds: int
    num_trials: int
    num_workers: int


@dataclass(frozen=True)
class _Job:
    source: TableSource | DeviceKind
    seed: int
    samplers: tuple[str, ...]
    num_trials: int
    num_workers: int


def compare(comparison: Comparison, *, num_processes: int) -> list[ProblemReport]:
    """Runs every sampler on every problem with every seed.

    Raises:
        UserError: A table cannot be searched on.
    """
    tables = {source: _table(source) for source in comparison.problems if isinstance(source, TableSource)}
    scores: dict[TableSource | DeviceKind, dict[str, dict[int, SearchScore]]] = {
        source: {sampler: {} for sampler in comparison.samplers} for source in comparison.problems
    }
    jobs = list(_jobs(comparison))
    for number, (job, found) in enumerate(_run_all(jobs, num_processes), start=1):
        for sampler, score in found.items():
            scores[job.source][sampler][job.seed] = score
        print(f"{number} of {len(jobs)}: {_name(job.source)}, seed {job.seed}", file=sys.stderr, flush=True)
    return [
        _report(source, scores[source], tables[source] if isinstance(source, TableSource) else None)
        for source in comparison.problems
    ]


def _jobs(comparison: Comparison) -> Iterator[_Job]:
    for source in comparison.problems:
        for seed in range(comparison.num_seeds):
            samplers = tuple(s for s in comparison.samplers if seed < _MOST_SEEDS.get(s, comparison.num_seeds))
            yield _Job(source, seed, samplers, comparison.num_trials, comparison.num_workers)


def _run_all(jobs: Sequence[_Job], num_processes: int) -> Iterator[tuple[_Job, dict[str, SearchScore]]]:
    if num_processes == 1:
        for job in jobs:
            yield job, _run(job)
        return
    # Each search is a process of its own, and two threads of one only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(num_processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(_run, job): job for job in jobs}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _run(job: _Job) -> dict[str, SearchScore]:
    problem: SearchProblem
    problem = _table(job.source) if isinstance(job.source, TableSource) else SyntheticDevice(job.source, job.seed)
    scores = {}
    for sampler in job.samplers:
        trace = run_search(problem, sampler, seed=job.seed, num_trials=job.num_trials, num_workers=job.num_workers)
        scores[sampler] = score_search(trace, problem.best, problem.objective.memory_cap_bytes)
    return scores


@lru_cache
def _table(source: TableSource) -> RecordedTable:
    return RecordedTable(read_table(source.path, cap_bytes=source.cap_bytes))


def _name(source: TableSource | DeviceKind) -> str:
    return str(source.path) if isinstance(source, TableSource) else source.name


def _report(
    source: TableSource | DeviceKind, scores: dict[str, dict[int, SearchScore]], table: RecordedTable | None
) -> ProblemReport:
    by_sampler = {sampler: [of[seed] for seed in sorted(of)] for sampler, of in scores.items()}
    most = max(len(of) for of in by_sampler.values())
    labels = {s: s if len(of) == most else f"{s} ({len(of)} seeds)" for s, of in by_sampler.items()}
    return ProblemReport(
        name=table.name if table is not None else _name(source),
        is_recorded=table is not None,
        facts=_table_facts(table) if table is not None else _device_facts(source),
        notes=table.notes if table is not None else (),
        summaries={labels[sampler]: summarize_searches(of) for sampler, of in by_sampler.items()},
        curves={sampler: regret_curve(of) for sampler, of in by_sampler.items()},
    )


def _table_facts(table: RecordedTable) -> str:
    lists = ", ".join(f"{blocks.num_blocks} x {blocks.kind}" for blocks in table.choices.shape.block_lists)
    device = "a device that the file does not name" if table.device is None else table.device
    cap = format_bytes(table.objective.memory_cap_bytes)
    return f"{table.num_policies} policies of {lists}, measured on {device}; cap {cap}."


def _device_facts(source: TableSource | DeviceKind) -> str:
    assert isinstance(source, DeviceKind), "tables have facts of their own"
    facts = [f"global batch {source.global_batch_size}", f"{source.noise:.0%} noise"]
    if source.has_allocator:
        facts.append("peaks 1 to 2.5 % above the predicted ones in units of 2 MiB, out of memory above the cap")
    if source.growth:
        ratio = math.exp(2 * source.growth)
        facts.append(f"recompute of the last block {ratio:.1f} times as dear as of the first")
    if source.slow_batch != 1:
        facts.append(f"one micro-batch size {source.slow_batch - 1:.0%} slower than it should be")
    if source.overhead:
        facts.append(f"{source.overhead:g} times the kernels' time around them in a step of single samples")
    if source.slow_pair != 1:
        facts.append(f"attention+mlp {source.slow_pair - 1:.0%} dearer than attention and mlp together")
    if source.roughness:
        facts.append(f"each policy {source.roughness:.1%} off any sum of costs")
    return f"{'; '.join(facts)}."


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        comparison = _comparison(options)
        reports = compare(comparison, num_processes=options.processes)
        _write(reports, comparison, options)
    except UserError as error:
        for line in error.lines:
            print(line, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Compares samplers on recorded tables and made-up devices; docs/samplers.md explains the columns."
    )
    parser.add_argument("--seeds", type=_positive, help="searches of each sampler on each problem (20; quick: 2)")
    parser.add_argument("--trials", type=_positive, help="trials of a search, the baseline included (30; quick: 12)")
    parser.add_argument("--workers", type=_positive, default=1, help="trials of one search at once (1)")
    parser.add_argument("--samplers", nargs="+", metavar="NAME", help=f"of {', '.join(SAMPLERS)} (all; quick: not gp)")
    parser.add_argument("--table", type=Path, action="append", metavar="FILE", help="results.json of a grid study")
    parser.add_argument("--device", action="append", metavar="NAME", help="kind of made-up device, as in the report")
    parser.add_argument("--memory-cap", metavar="SIZE", help="in place of the tables' own caps, for example 400MiB")
    parser.add_argument("--quick", action="store_true", help="a look at whether it runs: one device, few seeds")
    parser.add_argument("--output", type=Path, default=Path("runs/samplers"), metavar="DIR", help="(runs/samplers)")
    parser.add_argument("--processes", type=_positive, default=os.cpu_count() or 1, help="at once (one per core)")
    parser.add_argument("--update-docs", action="store_true", help="pastes the tables and the figure into docs/")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("below 1")
    return number


def _comparison(options: argparse.Namespace) -> Comparison:
    quick = options.quick
    samplers = tuple(options.samplers or [name for name in SAMPLERS if not (quick and name == "gp")])
    unknown = [name for name in samplers if name not in SAMPLERS]
    if unknown:
        raise UserError(f"--samplers has {unknown[0]}; known are {', '.join(SAMPLERS)}; choose among them")
    if options.update_docs and (options.table or options.device or quick):
        raise UserError(
            "--update-docs is given with --table, --device or --quick, but the docs show a run over all problems; "
            "leave out one or the other"
        )
    return Comparison(
        problems=(*_tables(options), *_kinds(options)),
        samplers=samplers,
        num_seeds=options.seeds or (2 if quick else 20),
        num_trials=options.trials or (12 if quick else 30),
        num_workers=options.workers,
    )


def _tables(options: argparse.Namespace) -> list[TableSource]:
    """Those that are named; without any names all that were recorded."""
    named = options.table or options.device or options.quick
    paths = options.table or ([] if named else sorted((_HERE / "tables").glob("*.json")))
    return [TableSource(path, _cap_bytes(options.memory_cap)) for path in paths]


def _kinds(options: argparse.Namespace) -> list[DeviceKind]:
    by_name = {kind.name: kind for kind in DEVICE_KINDS}
    unknown = [name for name in options.device or () if name not in by_name]
    if unknown:
        raise UserError(f"--device is {unknown[0]!r}; known are {'; '.join(by_name)}; choose among them")
    if options.device or options.table:
        return [by_name[name] for name in options.device or ()]
    return list(DEVICE_KINDS[:1] if options.quick else DEVICE_KINDS)


def _cap_bytes(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        num_bytes = parse_memory_size(text).num_bytes
    except ValueError as error:
        raise UserError(f"--memory-cap {error}") from error
    if num_bytes is None:
        raise UserError(f"--memory-cap is {text!r}; a table has no device to take a share of, so give it in bytes")
    return num_bytes


def _write(reports: Sequence[ProblemReport], comparison: Comparison, options: argparse.Namespace) -> None:
    text = report_text(reports)
    print(text)
    panels = regret_panels({report.name: report.curves for report in reports})
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        write_whole(options.output / "samplers.md", text)
        write_whole(options.output / "samplers.json", json.dumps([asdict(report) for report in reports], indent=1))
        write_whole(options.output / "samplers.html", regret_html(panels))
    except OSError as error:
        raise UserError(f"--output is {options.output}: {error.strerror}; name a folder that can be written") from error
    if not options.update_docs:
        return
    for section, is_recorded in SECTIONS.items():
        chosen = [report for report in reports if report.is_recorded is is_recorded]
        paste(PAGE, section, f"{_how(comparison)}\n\n{report_text(chosen)}" if chosen else "None was recorded yet.")
    write_whole(_FIGURE, regret_svg(panels))


def _how(comparison: Comparison) -> str:
    workers = "one trial at a time" if comparison.num_workers == 1 else f"{comparison.num_workers} trials at a time"
    return (
        f"{comparison.num_seeds} seeds, {comparison.num_trials} trials at most, {workers}; "
        f"optuna {version('optuna')}, numpy {version('numpy')}."
    )


if __name__ == "__main__":
    sys.exit(main())
