"""`tune export --into FILE`: the difference on standard error, then the file written unless it is a dry run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.text import Text

from tuner.console import err_console
from tuner.export.base import ExportContext, Exporter
from tuner.export.into.edit_file import plan_edit, write_edit
from tuner.results import TrialRecord

_STYLES = {"+++": "bold", "---": "bold", "@@": "cyan", "+": "green", "-": "red"}


def export_into(
    path: Path, exporter: Exporter, trial: TrialRecord, context: ExportContext, *, dry_run: bool
) -> dict[str, object]:
    """Sets the trial's keys in the file and tells what was done; gives back the same as plain data.

    Raises:
        ExportError: The file cannot be edited; it is unchanged then.
    """
    policy = trial.to_policy()
    edit = plan_edit(path, exporter, policy, context)
    backup = None if dry_run or not edit.changes else write_edit(edit)
    diff = edit.diff()
    _show_diff(diff)
    where = f" below {edit.section}" if edit.section else ""
    if not edit.changes:
        _say(f"{path} says trial {trial.number} ({trial.policy_summary}) already{where}; nothing to change")
    elif dry_run:
        _say(f"this is what trial {trial.number} ({trial.policy_summary}) would change{where}; nothing was written")
    else:
        _say(f"trial {trial.number} ({trial.policy_summary}) set in {path}{where}; the old file is {backup}")
    batch = policy.batch
    _say(
        f"batch: b={batch.micro_batch_size} x a={batch.gradient_accumulation_steps} x w={batch.data_parallel_degree} "
        f"= E={batch.global_batch_size} per optimizer step; {context.version.covers}"
    )
    for note in exporter.notes(policy, context):
        _say(f"- {note}")
    return {
        "file": str(path),
        "section": edit.section or None,
        "changed": edit.changes,
        "dry_run": dry_run,
        "backup": None if backup is None else str(backup),
        "diff": "\n".join(diff),
        "notes": list(exporter.notes(policy, context)),
    }


def _show_diff(lines: Iterable[str]) -> None:
    for line in lines:
        style = next((style for start, style in _STYLES.items() if line.startswith(start)), "")
        err_console.print(Text(line, style=style), soft_wrap=True)


def _say(text: str) -> None:
    err_console.print(Text(text), soft_wrap=True)
