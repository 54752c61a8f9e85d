from __future__ import annotations

import sys
from typing import Any

import pytest
import ray._private.worker as ray_worker

from runners.cluster.notices import keep_off_stdout


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_worker, "print_to_stdstream", ray_worker.print_to_stdstream)


def notice(line: str) -> dict[str, Any]:
    """As Ray's driver makes it of what the cluster reports."""
    return {"pid": "raylet", "ip": None, "is_err": False, "lines": [line], "job": None, "task_name": None}


# Ray tells a line only once where another one differs from it by numbers alone.
@pytest.mark.parametrize(("times", "line"), [(1, "a node was lost"), (2, "a node was lost, as before")])
def test_what_ray_tells_every_driver_is_no_result(times: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(times):
        keep_off_stdout()
    ray_worker.print_to_stdstream(notice(line), ignore_prefix=False)
    sys.stdout.flush()
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count(line) == 1
