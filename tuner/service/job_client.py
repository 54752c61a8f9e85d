"""The cluster's job server, as far as studies need it. The only file that knows Ray Jobs."""

from __future__ import annotations

import datetime
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from search_spaces.yaml_words import quoted
from tuner.search_file.url import redact_url
from tuner.service.answer_in_time import answer_in_time
from tuner.user_error import FailedError, UserError

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

T = TypeVar("T")

#: Metadata of a job that says which study it drives.
_STUDY = "recompute_tuner_study"
#: Seconds for which a submission is tried.
_SUBMIT_PATIENCE_S = 30.0
#: Seconds that a stopped driver has to keep what was measured before Ray kills it; Ray's own default is 3.
_STOP_WAIT_S = 120
#: Seconds that the server has for an answer, and for taking a folder. Ray's own client waits for ever.
_ANSWER_S, _UPLOAD_S = 60.0, 900.0
#: What a server does that is gone, or that is none for jobs: errors of requests are OSErrors, and Ray reads what it
#: expects out of whatever has come.
_NO_GOOD_ANSWER = (OSError, RuntimeError, LookupError, TypeError, ValueError)
#: Seconds between two looks at a log that is followed.
_FOLLOW_EVERY_S = 1.0
_ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
_ENDED = ("STOPPED", "SUCCEEDED", "FAILED")


class ServiceError(UserError):
    """The address or the study is none that jobs can be asked of; the message is one line for the user."""


class ServiceFailedError(FailedError):
    """The job server did not do what was asked; the message is one line for the user."""


@dataclass(frozen=True)
class StudyJob:
    """One driver of a study.

    Attributes:
        status: PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED, by Ray.
        message: What Ray says of how it stands.
        submitted_at, ended_at: In UTC, ISO 8601; None where it has not happened.
    """

    study: str
    job: str
    status: str
    message: str
    submitted_at: str | None
    ended_at: str | None

    @property
    def has_ended(self) -> bool:
        return self.status in _ENDED


class JobClient:
    """Jobs that drive studies on one cluster.

    Args:
        address: Of the job server, such as ``http://head.example:8265``.

    Raises:
        ServiceError: Nobody answers there, or no job server.
    """

    def __init__(self, address: str) -> None:
        self._shown = redact_url(address)
        if not _is_address(address):
            raise ServiceError(
                f"--address is {quoted(self._shown)}; allowed is the address of the cluster's job server, such as "
                "http://head.example:8265, where Ray shows its dashboard; write that"
            )
        self._client = self._connect(address)

    def submit(self, study: str, *, entrypoint: str, folder: Path, environment: Mapping[str, str]) -> StudyJob:
        """Starts a driver.

        Args:
            entrypoint: Shell command, run in a copy of the folder on the cluster.
            folder: Sent to the cluster.
        """
        number = sum(job.study == study for job in self.jobs())
        variables = {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_WAIT_S), **environment}
        deadline = time.monotonic() + _SUBMIT_PATIENCE_S
        while True:
            try:
                name = self._ask(
                    lambda: self._client.submit_job(
                        entrypoint=entrypoint,
                        submission_id=f"{study}-{number + 1}" if study.isascii() else None,
                        metadata={_STUDY: study},
                        runtime_env={"working_dir": str(folder), "env_vars": variables},
                    ),
                    timeout_s=_UPLOAD_S,
                )
                return self._info(name)
            except ServiceFailedError:
                # A cluster that has just come up has a server already and nobody yet who takes a job.
                if time.monotonic() >= deadline:
                    raise
                time.sleep(1)

    def jobs(self) -> list[StudyJob]:
        """All drivers that the cluster remembers, the newest first."""
        found = self._ask(lambda: self._client.list_jobs())
        jobs = [details for details in found if _STUDY in (details.metadata or {})]
        jobs.sort(key=lambda details: details.start_time or 0, reverse=True)
        return [_study_job(details) for details in jobs]

    def newest(self, study: str) -> StudyJob:
        """The last driver of a study.

        Raises:
            ServiceError: The cluster knows of none; the message lists the studies that it knows.
        """
        jobs = self.jobs()
        found = next((job for job in jobs if job.study == study), None)
        if found is None:
            known = ", ".join(dict.fromkeys(job.study for job in jobs)) or "none"
            raise ServiceError(
                f"STUDY is {quoted(study)}, which no job on {self._shown} drives (studies there: {known}); name one"
            )
        return found

    def log(self, job: StudyJob) -> str:
        """All that the driver has printed."""
        return self._ask(lambda: str(self._client.get_job_logs(job.job)))

    def follow_log(self, job: StudyJob) -> Iterator[str]:
        """What the driver has printed and prints, in pieces, until it ends."""
        num_given = 0
        while True:
            # Asked first, so that nothing is printed after the log was read for the last time.
            has_ended = self._info(job.job).has_ended
            text = self.log(job)
            yield text[num_given:]
            num_given = len(text)
            if has_ended:
                return
            time.sleep(_FOLLOW_EVERY_S)

    def stop(self, job: StudyJob) -> None:
        """Asks the driver to stop as Ctrl-C would: it keeps what was measured. Returns at once."""
        self._ask(lambda: self._client.stop_job(job.job))

    def _info(self, name: str) -> StudyJob:
        return self._ask(lambda: _study_job(self._client.get_job_info(name)))

    def _ask(self, call: Callable[[], T], *, timeout_s: float = _ANSWER_S) -> T:
        with self._failures():
            return answer_in_time(call, timeout_s=timeout_s)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turns what goes wrong with the server within the context into `ServiceFailedError`.

        Raises:
            ServiceError: The server wants a token, or another one.
        """
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as error:
            raise self._wants_token() from error
        except _NO_GOOD_ANSWER as error:
            raise ServiceFailedError(
                f"the job server at {self._shown} does not do it ({_one_line(error)}); look at the cluster with "
                "`ray status` and try again"
            ) from error

    def _wants_token(self) -> ServiceError:
        return ServiceError(
            f"--address is {self._shown}, and the cluster there asks for a token; set RAY_AUTH_MODE=token, and "
            "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's token"
        )

    def _connect(self, address: str) -> JobSubmissionClient:
        from ray.exceptions import AuthenticationError
        from ray.job_submission import JobSubmissionClient

        # Ray tells of each file that it sends, on this process's own output.
        for name in ("dashboard.modules.job.sdk", "dashboard.modules.dashboard_sdk", "_private.runtime_env.packaging"):
            logging.getLogger(f"ray.{name}").setLevel(logging.WARNING)
        try:
            with _only_what_was_named():
                return answer_in_time(lambda: JobSubmissionClient(address), timeout_s=_ANSWER_S)
        except AuthenticationError as error:
            raise self._wants_token() from error
        except _NO_GOOD_ANSWER as error:
            raise ServiceError(
                f"--address is {self._shown}, but no job server answers there ({_one_line(error)}); start the cluster "
                "with ray[default] installed and its dashboard reachable, and name the dashboard's address"
            ) from error


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port that is no number, or brackets that are no IPv6 address
        return False


def _one_line(error: BaseException) -> str:
    """What a library says of an error, which may repeat the address, or a page that came in place of an answer."""
    said = redact_url(" ".join(str(error).split()))
    return f"{said[:200]}..." if len(said) > 200 else said or type(error).__name__


@contextmanager
def _only_what_was_named() -> Iterator[None]:
    """Ray prefers an address in the environment to the one that it is given; within the context there is none."""
    hidden = {name: os.environ.pop(name) for name in _ADDRESS_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _study_job(details: JobDetails) -> StudyJob:
    return StudyJob(
        study=(details.metadata or {})[_STUDY],
        job=details.submission_id or "",
        status=str(details.status.value),
        message=" ".join((details.message or "").split()),
        submitted_at=_iso(details.start_time),
        ended_at=_iso(details.end_time),
    )


def _iso(milliseconds: int | None) -> str | None:
    if not milliseconds:
        return None
    moment = datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.timezone.utc)
    return moment.isoformat(timespec="seconds")
