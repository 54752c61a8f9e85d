from __future__ import annotations

import numpy as np
import pytest
import torch

from runners.proof.tensor_log import TensorLog


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.tensor([[1.0, 2.0], [3.0, 4.0]]), [1.0, 2.0, 3.0, 4.0]),
        (torch.tensor([1.5, -2.0], dtype=torch.bfloat16), [1.5, -2.0]),
        (torch.tensor([1.0, 1e-17], dtype=torch.float64), [1.0, 1e-17]),
        (torch.tensor([2**53 - 1, -5]), [2**53 - 1, -5]),
        (torch.tensor([True, False]), [1.0, 0.0]),
        (torch.tensor(7), [7.0]),
        (torch.tensor([1 + 2j]), [1.0, 2.0]),
        (torch.tensor([[0.0, 3.0]]).to_sparse(), [0.0, 3.0]),
        (torch.zeros(0), []),
        (torch.arange(4.0).view(2, 2).T, [0.0, 2.0, 1.0, 3.0]),
    ],
    ids=["float32", "bfloat16", "float64", "int64", "bool", "scalar", "complex", "sparse", "empty", "transposed"],
)
def test_values_come_back_exactly(tensor: torch.Tensor, expected: list[float]) -> None:
    log = TensorLog()
    log.write([("before", torch.ones(3)), ("x", tensor), ("after", torch.ones(3))])
    assert log.read("x").tolist() == expected
    assert np.array_equal(log.read("after"), np.ones(3))
    assert log.names() == ["before", "x", "after"]


def test_log_keeps_values_of_the_moment_it_was_written() -> None:
    log, tensor = TensorLog(), torch.ones(2)
    log.write([("x", tensor)])
    tensor.zero_()
    assert log.read("x").tolist() == [1.0, 1.0]
