from __future__ import annotations

import pytest

from runners.parallel.records import CollectiveCount, Communication
from tuner.communication_text import communication_text


@pytest.mark.parametrize(
    ("communication", "text"),
    [
        (
            Communication(
                all_gather=CollectiveCount(calls=36, bytes=1024**2, calls_added_by_recompute=4),
                reduce_scatter=CollectiveCount(calls=1, bytes=2048, calls_added_by_recompute=0),
            ),
            "36 all-gathers (1.0 MiB) and 1 reduce-scatter (2.0 KiB) per step; recompute adds +4 all-gathers",
        ),
        (
            Communication(all_reduce=CollectiveCount(calls=2, bytes=2048, calls_added_by_recompute=0)),
            "2 all-reduces (2.0 KiB) per step; recompute adds none",
        ),
        (
            Communication(all_reduce=CollectiveCount(calls=2, bytes=2048)),
            "2 all-reduces (2.0 KiB) per step; what recompute adds was not measured",
        ),
    ],
    ids=["fsdp2", "ddp", "unproven"],
)
def test_a_step_in_words(communication: Communication, text: str) -> None:
    assert communication_text(communication) == text
