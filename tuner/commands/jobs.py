"""`tune list`, `status`, `logs` and `stop`: studies that jobs on a cluster drive."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import typer
from rich.table import Table

from search_spaces.visible_text import visible
from tuner.console import EXIT_DONE, err_console, show, show_text
from tuner.service.job_client import JobClient, StudyJob


def list_command(*, address: str, as_json: bool) -> int:
    """Shows all studies that the cluster remembers, the newest first; gives back the exit code."""
    jobs = JobClient(address).jobs()
    if as_json:
        show_text(json.dumps([asdict(job) for job in jobs], indent=1))
    elif jobs:
        show(_table(jobs))
    else:
        show_text(f"no studies on {address}")
    return EXIT_DONE


def status_command(study: str, *, address: str, as_json: bool) -> int:
    """Shows how the last driver of a study stands, and the last line that it printed; gives back the exit code."""
    client = JobClient(address)
    job = client.newest(study)
    lines = client.log(job).strip().splitlines()
    if as_json:
        show_text(json.dumps({**asdict(job), "last_line": lines[-1] if lines else None}, indent=1))
        return EXIT_DONE
    show(_table([job]))
    if job.message:
        show_text(job.message)
    if lines:
        show_text(f"last line: {lines[-1]}")
    return EXIT_DONE


def logs_command(study: str, *, address: str, follow: bool) -> int:
    """Prints what the last driver of a study has printed, and with ``follow`` what it prints until it ends."""
    client = JobClient(address)
    job = client.newest(study)
    if not follow:
        show_text(client.log(job))
        return EXIT_DONE
    for piece in client.follow_log(job):
        typer.echo(visible(piece), nl=False)
    return EXIT_DONE


def stop_command(study: str, *, address: str) -> int:
    """Stops the driver of a study, which keeps what was measured; gives back the exit code."""
    client = JobClient(address)
    job = client.newest(study)
    if job.has_ended:
        err_console.print(f"job {job.job} has ended already: {job.status}", soft_wrap=True)
        return EXIT_DONE
    client.stop(job)
    err_console.print(
        f"job {job.job} was asked to stop; what was measured is kept: go on with tune submit --resume", soft_wrap=True
    )
    return EXIT_DONE


def _table(jobs: Sequence[StudyJob]) -> Table:
    table = Table()
    for title in ("study", "job", "status", "submitted (UTC)", "ended (UTC)"):
        table.add_column(title)
    for job in jobs:
        table.add_row(job.study, job.job, job.status, job.submitted_at or "", job.ended_at or "")
    return table
