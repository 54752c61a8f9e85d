from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from tuner.interrupts import Interrupts

SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda s: s.name)


@pytest.fixture(autouse=True)
def hang_up_is_not_ignored() -> Iterator[None]:
    """Tests may themselves run under ``nohup``, which has it ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def interrupted() -> pytest.RaisesExc[KeyboardInterrupt]:
    return pytest.raises(KeyboardInterrupt, match=r"^$")  # a signal carries no text


@SIGNALS
def test_a_signal_interrupts_at_once_where_nothing_is_kept(number: signal.Signals) -> None:
    with Interrupts().handled(), interrupted():
        signal.raise_signal(number)


@SIGNALS
def test_a_held_signal_waits_for_a_place_to_leave(number: signal.Signals) -> None:
    interrupts = Interrupts()
    steps = []
    with interrupts.handled(), interrupted(), interrupts.held():
        signal.raise_signal(number)
        steps.append("stored")
        interrupts.raise_if_pending()
        steps.append("never")
    assert steps == ["stored"]


def test_a_held_signal_is_not_forgotten_at_the_end() -> None:
    interrupts = Interrupts()
    with interrupts.handled(), interrupted(), interrupts.held():
        signal.raise_signal(signal.SIGINT)


def test_a_second_signal_does_not_wait() -> None:
    interrupts = Interrupts()
    with interrupts.handled(), interrupted(), interrupts.held():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the second one waited")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_python_dropped_is_found_at_the_next_look() -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    interrupts = Interrupts()
    with interrupts.handled():
        Finalized()
        with interrupted():
            interrupts.raise_if_pending()


def test_a_signal_while_results_are_written_changes_nothing() -> None:
    interrupts = Interrupts()
    with interrupts.handled():
        with interrupted():
            signal.raise_signal(signal.SIGTERM)
        interrupts.refuse()
        signal.raise_signal(signal.SIGTERM)
        interrupts.raise_if_pending()


def test_without_a_signal_there_is_no_interrupt() -> None:
    interrupts = Interrupts()
    with interrupts.handled(), interrupts.held():
        interrupts.raise_if_pending()


def test_handlers_are_given_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts().handled():
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_thread_leaves_signals_alone() -> None:
    seen = []

    def look() -> None:
        with Interrupts().handled():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]


def test_a_hang_up_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts().handled():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_wait_ends_with_a_signal_that_is_held() -> None:
    interrupts = Interrupts()
    timer = threading.Timer(0.05, lambda: signal.raise_signal(signal.SIGTERM))
    with interrupts.handled(), interrupted(), interrupts.held():
        timer.start()
        interrupts.sleep(3600)


def test_a_wait_without_a_signal_ends() -> None:
    Interrupts().sleep(0.01)
