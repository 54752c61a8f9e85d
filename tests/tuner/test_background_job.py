from __future__ import annotations

import threading

import pytest

from tuner.background_job import BackgroundJob


class Counting:
    """A job that counts its runs, each of which takes until it is let go."""

    def __init__(self) -> None:
        self.num_begun = 0
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.threads: set[int] = set()

    def __call__(self) -> None:
        self.num_begun += 1
        self.threads.add(threading.get_ident())
        self.has_begun.set()
        assert self.may_end.wait(10.0)


def test_requests_while_it_runs_are_one_more_run() -> None:
    job = Counting()
    background = BackgroundJob(job, name="counting")
    background.request()
    assert job.has_begun.wait(10.0)
    for _ in range(100):
        background.request()
    assert not background.wait(0.05)
    job.may_end.set()
    assert background.wait()
    assert job.num_begun == 2
    background.request()
    background.stop()
    assert job.num_begun == 3
    assert len(job.threads) == 1
    assert threading.get_ident() not in job.threads


def test_what_was_set_before_a_request_is_seen_by_the_job() -> None:
    told: list[int] = []
    seen: list[int] = []
    background = BackgroundJob(lambda: seen.append(len(told)), name="reading")
    for number in range(2000):
        told.append(number)
        background.request()
    background.stop()
    assert seen[-1] == 2000
    assert seen == sorted(seen)


def test_an_error_is_raised_to_whoever_asks_next() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        assert may_end.wait(10.0)
        raise LookupError("no such table")

    background = BackgroundJob(fail, name="failing")
    background.request()
    assert begun.wait(10.0)
    background.request()  # of a run that has not failed yet
    may_end.set()
    with pytest.raises(LookupError, match="no such table"):
        background.wait()
    with pytest.raises(LookupError, match="no such table"):
        background.request()
    with pytest.raises(LookupError, match="no such table"):
        background.stop()


def test_stopping_ends_the_thread() -> None:
    job = Counting()
    job.may_end.set()
    background = BackgroundJob(job, name="stopping")
    background.request()
    background.stop()
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("stopping")] == []
    BackgroundJob(job, name="never-asked").stop()
