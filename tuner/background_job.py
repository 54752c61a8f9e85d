"""One job that is done beside the main thread, again and again, whenever it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait


class BackgroundJob:
    """Does a job in a thread of its own. Requests that come before it has begun are all answered by that one run.

    So whoever asks does not wait, and asking often costs no more than the job can do in that time. An error of the job
    is raised to whoever asks next. For one thread that asks.
    """

    def __init__(self, job: Callable[[], None], *, name: str) -> None:
        """Stores the job.

        Args:
            name: Of the thread, for whoever looks at the process.
        """
        self._job = job
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._newest: Future[None] | None = None

    def request(self) -> None:
        """The job will begin after this call, once."""
        newest = self._newest
        if newest is not None and not newest.running():
            if not newest.done():
                return
            newest.result()
        self._newest = self._executor.submit(self._run_after, newest)

    def wait(self, timeout_s: float | None = None) -> bool:
        """True as soon as everything that was requested is done, False after the time-out; None waits for ever."""
        if self._newest is None:
            return True
        wait([self._newest], timeout_s)
        if not self._newest.done():
            return False
        self._newest.result()
        return True

    def stop(self) -> None:
        """Waits for what was requested and ends the thread; nothing can be requested afterwards."""
        self._executor.shutdown()
        self.wait()

    def _run_after(self, before: Future[None] | None) -> None:
        if before is not None:
            # It has ended, and its error must not be lost.
            before.result()
        self._job()
