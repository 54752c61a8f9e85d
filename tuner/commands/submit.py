"""`tune submit`: the whole search, driven by a job on the cluster."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tuner.config import SearchConfig
from tuner.console import EXIT_DONE, err_console, show_text
from tuner.search_file.load import load_search_file
from tuner.service.job_client import JobClient, ServiceError
from tuner.service.submission import entrypoint, write_submission


def submit_command(search_file: Path, *, address: str, resume: bool, as_json: bool) -> int:
    """Hands the study over and returns at once; gives back the exit code."""
    config = load_search_file(search_file)
    client = JobClient(address)
    _refuse_running(client, config.study)
    with tempfile.TemporaryDirectory(prefix="tune-submit-") as scratch:
        folder = Path(scratch) / "sent"
        write_submission(config, folder)
        job = client.submit(
            config.study,
            entrypoint=entrypoint(resume=resume),
            folder=folder,
            environment={"PYTHONUNBUFFERED": "1", "RAY_worker_niceness": "0"},
        )
    if as_json:
        show_text(json.dumps({"study": job.study, "job": job.job, "address": address}, indent=1))
        return EXIT_DONE
    show_text(job.study)
    err_console.print(
        f"job {job.job} drives it on {address}: tune status {job.study}, tune logs {job.study} -f and "
        f"tune stop {job.study}, each with --address {address}",
        soft_wrap=True,
    )
    for line in _what_stays_there(config):
        err_console.print(line, soft_wrap=True)
    return EXIT_DONE


def _refuse_running(client: JobClient, study: str) -> None:
    running = [job.job for job in client.jobs() if job.study == study and not job.has_ended]
    if running:
        raise ServiceError(
            f"study {study} is driven by job {running[0]} already; wait for it or stop it with tune stop {study}, or "
            "give this search another name with `study:`"
        )


def _what_stays_there(config: SearchConfig) -> list[str]:
    """What cannot be seen from this machine, since the file names no store that both machines reach."""
    lines = []
    if config.storage is None:
        lines.append(
            "note: storage is null, a file on the node of the driver: if that node is lost, so are the trials; name a "
            "postgresql:// address to resume on another node"
        )
    if config.tracking.uri is None:
        lines.append(
            "note: tracking.uri is null, a file on the node of the driver: name an MLflow server to use tune show, "
            "export and ui from here"
        )
    return lines
