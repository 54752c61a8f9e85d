from __future__ import annotations

from pathlib import Path

import pytest
from tool_record import OtherWorkError, Peak, SearchNote, ToolRecord


def test_what_was_measured_is_there_in_the_next_call(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "record.json"
    record = ToolRecord.opened(file, {"work": "a"})
    record.peaks["plain"] = Peak(peak_bytes=7, first_step_s=0.5)
    record.rounds.append({"plain": (1.0, 0.9)})
    record.searches["as-it-is"] = SearchNote(time_s=3.0)
    record.save(file)
    assert ToolRecord.opened(file, {"work": "a"}) == record


def test_figures_of_another_work_are_not_mixed_in(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    ToolRecord.opened(file, {"work": "a", "device": "x"}).save(file)
    with pytest.raises(OtherWorkError, match=r"was begun with another device; name another --folder"):
        ToolRecord.opened(file, {"work": "a", "device": "y"})


def test_speeds_are_compared_in_the_rounds_that_both_took_part_in() -> None:
    rounds = [{"a": (2.0, 1.0), "b": (1.0, 1.0)}, {"a": (4.0, 1.0), "b": (2.0, 1.0)}, {"b": (9.0, 1.0)}]
    record = ToolRecord(identity={}, rounds=rounds)
    assert record.speed("b", "a").value == 2.0
