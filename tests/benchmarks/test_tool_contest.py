from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from tool_candidates import Candidate
from tool_contest import Contest, Deadline, OutOfTimeError, Work
from tool_record import ToolRecord
from torch import nn

from runners.devices.registry import open_device

WORK = Work({"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 32}, 16, 2, 2, "1s", False)
PLAIN = Candidate("plain", "as it is", 2, lambda _: None)
HALVED = Candidate("plain", "as it is", 1, lambda _: None)


def contest(record: ToolRecord) -> Contest:
    device = open_device(WORK.spec.device)
    return Contest(WORK, device, record, save=lambda: None, say=lambda _: None)


def breaks_after(num_steps: int) -> Callable[[nn.Module], Any]:
    """Puts a forward on the model that fails from then on."""

    def put_on(model: nn.Module) -> None:
        forward, left = model.forward, [num_steps]

        def failing(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("no more")
            return forward(*args, **kwargs)

        model.forward = failing

    return put_on


def test_a_stopped_contest_goes_on_in_another_process_without_measuring_peaks_again() -> None:
    record = ToolRecord(identity={})
    first = contest(record)
    first.enter(PLAIN)
    first.enter(HALVED)
    with pytest.raises(OutOfTimeError, match=r"^$"):
        first.run_rounds(Deadline(time.monotonic()))
    peaks = dict(record.peaks)
    assert list(peaks) == ["plain: as it is @2", "plain: as it is @1"]
    assert peaks["plain: as it is @2"].peak_bytes > peaks["plain: as it is @1"].peak_bytes
    second = contest(record)
    second.enter(PLAIN)
    second.enter(HALVED)
    second.run_rounds(Deadline(None))
    assert record.peaks == peaks
    assert [sorted(each) for each in record.rounds] == [sorted(peaks)] * WORK.num_rounds


def test_what_fails_is_a_line_of_the_table_and_the_others_go_on() -> None:
    record = ToolRecord(identity={})
    running = contest(record)
    running.enter(PLAIN)
    running.enter(Candidate("broken", "at once", 2, breaks_after(0)))
    running.enter(Candidate("broken", "later", 2, breaks_after(3)))
    running.run_rounds(Deadline(None))
    assert record.failures == {
        "broken: at once @2": "RuntimeError: no more",
        "broken: later @2": "RuntimeError: no more",
    }
    assert list(record.rounds[-1]) == ["plain: as it is @2"]
