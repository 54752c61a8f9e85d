from __future__ import annotations

from typing import Any

import pytest
import torch

from runners.proof.batch_split import UnsplittableBatchError, split_batch


def divide(make: Any, num_samples: int = 6, micro_batch_size: int = 2) -> list[dict[str, Any]]:
    return split_batch(
        make(num_samples), make(micro_batch_size), num_samples=num_samples, micro_batch_size=micro_batch_size
    )


def joined(parts: list[dict[str, Any]], name: str, dimension: int = 0) -> torch.Tensor:
    return torch.cat([part[name] for part in parts], dim=dimension)


class TestSplitBatch:
    @pytest.mark.parametrize(
        ("shape", "dimension"),
        [
            (lambda n: (n,), 0),
            (lambda n: (n, 5, 3), 0),
            (lambda n: (5, n, 3), 1),
            (lambda n: (n, n), 0),
            (lambda n: (6, n), 1),
            (lambda n: (2, n), 1),
            (lambda n: (4 * n, 3), 0),
            (lambda n: (1, 4 * n), 1),
            (lambda n: (4 * n, n), 1),
        ],
        ids=["flat", "first", "second", "square", "whole size first", "part size first", "packed", "one row", "both"],
    )
    def test_samples_are_found_in_whichever_dimension(self, shape: Any, dimension: int) -> None:
        whole = torch.arange(6 * 6 * 24).float()
        parts = divide(lambda n: {"x": whole[: torch.Size(shape(n)).numel()].view(shape(n))})
        assert len(parts) == 3
        expected = whole[: torch.Size(shape(6)).numel()].view(shape(6))
        assert torch.equal(joined(parts, "x", dimension), expected)

    def test_padding_that_follows_the_longest_sample_is_not_taken_for_samples(self) -> None:
        parts = split_batch({"x": torch.ones(6, 12)}, {"x": torch.ones(2, 4)}, num_samples=6, micro_batch_size=2)
        assert [tuple(part["x"].shape) for part in parts] == [(2, 12)] * 3

    def test_nests_are_divided_and_everything_else_is_shared(self) -> None:
        bias = torch.ones(3)

        def make(n: int) -> dict[str, Any]:
            tokens = torch.arange(n)
            return {
                "inputs": {"parts": [tokens, (tokens + 1, "name")]},
                "names": [str(i) for i in range(n)],
                "bias": bias,
                "scale": 0.5,
                "nothing": None,
            }

        parts = divide(make)
        assert [part["inputs"]["parts"][0].tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]
        assert [part["inputs"]["parts"][1][0].tolist() for part in parts] == [[1, 2], [3, 4], [5, 6]]
        assert [part["names"] for part in parts] == [["0", "1"], ["2", "3"], ["4", "5"]]
        assert all(part["bias"] is bias and part["scale"] == 0.5 and part["nothing"] is None for part in parts)

    def test_batch_without_samples_is_refused_by_its_inputs(self) -> None:
        message = "no input of the batch changes size between 2 and 6 samples; inputs are x, scale"
        with pytest.raises(UnsplittableBatchError, match=message):
            divide(lambda n: {"x": torch.ones(5, 3), "scale": 1.0})
