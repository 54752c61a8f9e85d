"""`tune export`: a measured policy as a training config."""

from __future__ import annotations

import difflib
from pathlib import Path

from search_spaces.whole_file import write_whole
from tuner.console import EXIT_DONE, err_console, show_text
from tuner.export.base import ExportError
from tuner.export.choose_trial import choose_trial
from tuner.export.registry import EXPORTERS
from tuner.memory_size import parse_memory_size
from tuner.studies import find_study


def export_command(
    study: str, export_format: str, *, output_dir: Path, trial: int | None, memory_cap: str | None, output: Path | None
) -> int:
    """Writes the config to a file or to standard output; gives back the exit code."""
    exporter = EXPORTERS.get(export_format)
    if exporter is None:
        near = difflib.get_close_matches(export_format, EXPORTERS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ExportError(f"--format is {export_format!r}; known are {', '.join(EXPORTERS)}{hint}")
    if trial is not None and memory_cap is not None:
        raise ExportError(f"--trial is {trial} and --memory-cap is {memory_cap}; name one of the two")
    _, results = find_study(study, output_dir=output_dir)
    chosen = choose_trial(results, number=trial, memory_cap_bytes=_bytes(memory_cap))
    text = exporter.export(results, chosen)
    if output is None:
        show_text(text)
        return EXIT_DONE
    try:
        write_whole(output, text)
    except OSError as error:
        raise ExportError(
            f"--output is {output}, which cannot be written: {error.strerror}; name another file"
        ) from error
    err_console.print(f"trial {chosen.number} ({chosen.policy_summary}) written to {output}", soft_wrap=True)
    return EXIT_DONE


def _bytes(memory_cap: str | None) -> int | None:
    if memory_cap is None:
        return None
    try:
        size = parse_memory_size(memory_cap)
    except ValueError as error:
        raise ExportError(f"--memory-cap {error}") from error
    if size.num_bytes is None:
        raise ExportError(
            f"--memory-cap is {memory_cap}; a share of a device means nothing here, write bytes such as 40GiB"
        )
    return size.num_bytes
