"""The readers of files that may come from anyone, and what each of them owes whatever stands in the file."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from exported_studies import measured, policy, study_of
from recorded_table import RecordedTable
from simulation import MIB, results_of, trial
from table_file import read_table

from search_spaces.policy import PolicyError
from search_spaces.policy_file import load_policy, policy_to_yaml
from tuner.comparison.compare_studies import compare_studies
from tuner.comparison.tables import comparison_tables
from tuner.console import PlainConsole
from tuner.export.base import Exporter
from tuner.export.choose_trial import choose_trial
from tuner.export.context import context_of
from tuner.export.export_trial import export_trial
from tuner.export.registry import EXPORTERS
from tuner.export.versions import choose_version
from tuner.results import StudyResults
from tuner.results_file import read_results
from tuner.search_file.load import load_search_file, resolved_yaml
from tuner.speed_ratio import Playoff
from tuner.summary import summarize
from tuner.tables import front_table, trials_table
from tuner.user_error import UserError


@dataclass(frozen=True)
class Reader:
    """One kind of file.

    Attributes:
        read: Reads the file and does with it what the commands do; refuses it by an error that is meant for the user.
        sample: A file that is read without complaint, for fuzzers to start from.
    """

    file_name: str
    read: Callable[[Path], Callable[[], None]]
    sample: str


def check_reader(reader: Reader, content: bytes, folder: Path) -> bool:
    """True where the file was read; False where it was refused, as a user's mistake is to be refused.

    Raises:
        AssertionError: A refusal is no single line that begins with the file, or something was written.
    """
    file = folder / reader.file_name
    file.write_bytes(content)
    try:
        use = reader.read(file)
    except (UserError, PolicyError) as error:
        _check_refusal(error.lines if isinstance(error, UserError) else (str(error),), str(file))
        return False
    else:
        use()
        return True
    finally:
        assert os.listdir(folder) == [reader.file_name]


def _check_refusal(lines: Sequence[str], file: str) -> None:
    assert lines
    assert all(line.startswith(file) for line in lines[:-1]), lines
    assert lines[-1].startswith((file, "... and ")), lines
    assert all(line.isprintable() and len(line) < 5000 for line in lines), lines


def _search_file(path: Path) -> Callable[[], None]:
    config = load_search_file(path)

    def use() -> None:
        text = resolved_yaml(config, credentials="kept")
        path.write_text(text, encoding="utf-8")
        assert load_search_file(path) == config, "what is written down is what was read"

    return use


def _policy_file(path: Path) -> Callable[[], None]:
    policy = load_policy(path)

    def use() -> None:
        path.write_text(policy_to_yaml(policy), encoding="utf-8")
        again = load_policy(path)
        assert again == policy
        assert (again.key, again.summary()) == (policy.key, policy.summary())
        assert again.canonical().key == policy.key

    return use


def _results_file(path: Path) -> Callable[[], None]:
    results = read_results(path)

    def use() -> None:
        console = PlainConsole(file=io.StringIO(), width=160)
        summary = summarize(results)
        console.print(front_table(results, summary))
        console.print(trials_table(results))
        _export(results, list(EXPORTERS.values())[len(path.read_bytes()) % len(EXPORTERS)])
        with suppress(UserError):
            for table in comparison_tables(compare_studies((path.parent, results), (path.parent, results))):
                console.print(table)

    return use


def _export(results: StudyResults, exporter: Exporter) -> None:
    for through_python in (False, True):
        with suppress(UserError):
            context = context_of(results, choose_version(exporter, None), through_python=through_python)
            export_trial(exporter, results, choose_trial(results), context)


def _table(path: Path) -> Callable[[], None]:
    table = RecordedTable(read_table(path))

    def use() -> None:
        assert table.best is not None
        assert all(isinstance(note, str) for note in table.notes)

    return use


_SEARCH = """\
study: gpt2-12l
model: {factory: "huggingface:gpt2", args: {n_layer: 12, eps: 1.0e-5}, dtype: float32, autocast: null}
batch: {global_batch_size: 8, micro_batch_sizes: [1, 2, 4], sequence_length: [64, 128]}
optimizer: {name: adamw, args: {lr: 0.0001}}
memory_cap: 600MiB
placement:
  blocks: [transformer.h]
  units: {attention: attn, mlp: mlp}
  actions: [none, attention, mlp, attention+mlp, block, segment]
  segment_sizes: [2, 3]
  preserve_rng_state: search
search: {num_trials: 30, time_limit: 10m, sampler: tpe, seed: 0}
measurement: &measurement {warmup_steps: 2, min_steps: 5, max_steps: 50, relative_spread: 0.02, verify: true}
runner: {device: cpu, ray_address: "127.0.0.1:6379", resources_per_trial: {CPU: 2}, trial_timeout: 10m}
storage: postgresql://tuner:secret@db.example/tuning
tracking: {uri: "http://mlflow.example:5000", experiment: one}
output_dir: runs
"""


def _sample_results() -> str:
    playoff = Playoff(trials=(1, 2), step_times_s=((1.0, 1.1), (1.2, 1.3)))
    return results_of(trial(0), trial(1, "block"), trial(2, "none", 1), playoff=playoff).to_json()


def _sample_table() -> str:
    search = {
        "batch": {"global_batch_size": 2, "micro_batch_sizes": "auto"},
        "placement": {"actions": ["none", "block"], "segment_sizes": "auto", "preserve_rng_state": True},
        "runner": {"data_parallel_degree": 1},
    }
    return results_of(trial(0), trial(1, "block"), trial(2, "none", 1), cap_bytes=40 * MIB, search=search).to_json()


def _more_results() -> str:
    return study_of(*(measured(n, policy(kind)) for n, kind in enumerate(("none", "mix", "segment")))).to_json()


READERS = {
    "search": Reader("search.yaml", _search_file, _SEARCH),
    "policy": Reader("policy.yaml", _policy_file, policy_to_yaml(policy("mix"))),
    "results": Reader("results.json", _results_file, _sample_results()),
    "results of 12 blocks": Reader("results.json", _results_file, _more_results()),
    "table": Reader("results.json", _table, _sample_table()),
}
