from __future__ import annotations

import pytest

from runners.stack_place import read_place

LOOP = '  File "/home/me/proj/runners/worker_main.py", line 70 in _serve\n'


@pytest.mark.parametrize(
    ("frames", "place", "waits"),
    [
        (["/home/me/model.py|12|forward", "/v/torch/nn/modules/module.py|9|_call_impl"], "model.py line 12", False),
        (["/v/torch/nn/functional.py|5|linear", "/home/me/model.py|12|forward"], "functional.py line 5", False),
        (["/v/torch/distributed/distributed_c10d.py|3|all_reduce"], "distributed_c10d.py line 3", True),
        (["/v/torch/autograd/graph.py|8|_engine_run_backward"], "graph.py line 8", True),
        (["/home/me/op.py|4|backward", "/v/torch/autograd/graph.py|8|_engine_run_backward"], "op.py line 4", False),
    ],
    ids=["own-code", "an-operator", "a-collective", "backward", "own-backward"],
)
def test_a_rank_waits_where_only_torch_was_called_since_a_collective(
    frames: list[str], place: str, waits: bool
) -> None:
    lines = [frame.split("|") for frame in frames]
    stack = "".join(f'  File "{file}", line {line} in {function}\n' for file, line, function in lines)
    read = read_place(f"a warning\nStack (most recent call first):\n{stack}{LOOP}")
    assert read.place is not None
    assert read.place.startswith(place)
    assert read.waits is waits


def test_of_several_stacks_the_last_counts_and_without_one_nothing_is_known() -> None:
    first = 'Stack (most recent call first):\n  File "/a.py", line 1 in f\n'
    assert read_place(f"{first}{first.replace('/a', '/b')}").place == "b.py line 1, f"
    assert read_place("Segmentation fault").place is None
