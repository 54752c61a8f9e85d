"""Records a table for samplers.py: runs a complete grid search and keeps of its results what is read there.

    python benchmarks/record_table.py gpt-6          # benchmarks/tables/gpt-6.yaml -> benchmarks/tables/gpt-6.json

On a quiet machine. A recording that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recorded_table import RecordedTable
from table_file import BlockListEntry, Row, TableError, read_table

from search_spaces.whole_file import write_whole
from tuner.assemble import output_dir
from tuner.config import SearchConfig
from tuner.results import LOST_STATUSES
from tuner.results_file import read_results
from tuner.search_file.load import ConfigError, load_search_file
from tuner.user_error import UserError

_TABLES = Path(__file__).resolve().parent / "tables"
_SEARCH_SECTIONS = ("model", "batch", "optimizer", "memory_cap", "placement", "measurement", "runner")
_ROW_FIELDS = ("number", *Row.model_fields, "num_steps")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measures every policy of a small search and keeps it as a table.")
    parser.add_argument("name", help="of a search file in benchmarks/tables, or the path of another one")
    options = parser.parse_args(arguments)
    try:
        file = _search_file(options.name)
        target = file.with_suffix(".json")
        record(file, target)
    except (UserError, ConfigError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def record(search_file: Path, target: Path) -> None:
    """Runs the search, or goes on with it, and writes the table.

    Raises:
        UserError: The search is no exhaustive one, or it has not come to its end.
    """
    config = load_search_file(search_file)
    _refuse_other_samplers(search_file, config)
    folder = output_dir(config) / config.study
    resume = ["--resume"] if (folder / "search.yaml").exists() else []
    code = subprocess.run([sys.executable, "-m", "tuner", "run", str(search_file), *resume], check=False).returncode
    if code not in (0, 3):
        raise UserError(f"{search_file}: tune run ended with code {code}; read what it says above, and record again")
    results = read_results(folder / "results.json")
    write_whole(target, compact_text(json.loads(results.to_json())))
    table = RecordedTable(read_table(target))
    print(f"{target}: {table.num_policies} policies; {' '.join(table.notes) or 'complete'}")


def compact_text(results: Mapping[str, Any]) -> str:
    """The part of a results.json that makes a table, one trial per line; what was lost says nothing of its policy."""
    kept = {
        "schema_version": results["schema_version"],
        "study": results["study"],
        "memory_cap_bytes": results["memory_cap_bytes"],
        "search": {section: results["search"][section] for section in _SEARCH_SECTIONS},
        "environment": results["environment"],
        "model": {
            "model_class": results["model"]["model_class"],
            "num_parameters": results["model"]["num_parameters"],
            "block_lists": [_only(entry, BlockListEntry.model_fields) for entry in results["model"]["block_lists"]],
        },
    }
    head = json.dumps(kept, indent=1)[:-2]
    told = [trial for trial in results["trials"] if trial["status"] not in LOST_STATUSES]
    trials = ",\n".join(json.dumps(_only(trial, _ROW_FIELDS)) for trial in told)
    return f'{head},\n "trials": [\n{trials}\n]}}\n'


def _only(data: Mapping[str, Any], names: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    return {name: data[name] for name in names if data.get(name) is not None}


def _search_file(name: str) -> Path:
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return path
    known = sorted(file.stem for file in _TABLES.glob("*.yaml"))
    if name not in known:
        raise TableError(f"{name} is no search file and no name in {_TABLES}; known are {', '.join(known)}; name one")
    return _TABLES / f"{name}.yaml"


def _refuse_other_samplers(search_file: Path, config: SearchConfig) -> None:
    if config.search.sampler != "grid":
        raise TableError(
            f"{search_file}: search.sampler is {config.search.sampler}; a table holds every policy, which grid tries: "
            "write grid"
        )


if __name__ == "__main__":
    sys.exit(main())
