"""Calls to a server that may have taken the connection and then never answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def answer_in_time(call: Callable[[], T], *, timeout_s: float) -> T:
    """What the call gives back or raises; whoever waits for it can be interrupted.

    Raises:
        TimeoutError: It has not ended by then. Its thread is left alone, and does not keep the program from ending.
    """
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
            answer.set_exception(error)

    thread = threading.Thread(target=run, name="server call", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not answer.done():
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    return answer.result()
