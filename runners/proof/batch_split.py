"""Divides one batch into micro-batches of the same samples, whichever dimension the samples stand in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class UnsplittableBatchError(ValueError):
    """The batch has no part that grows with the number of samples."""


def split_batch(
    whole: Mapping[str, Any], example: Mapping[str, Any], *, num_samples: int, micro_batch_size: int
) -> list[dict[str, Any]]:
    """The samples of ``whole`` as micro-batches, in order.

    Args:
        whole: A batch of ``num_samples``.
        example: A batch of ``micro_batch_size`` from the same source; where its sizes differ from those of ``whole``,
            the samples are.
        num_samples: A multiple of ``micro_batch_size``, and larger.

    Raises:
        UnsplittableBatchError: Nothing in the batch depends on the number of samples.
    """
    divider = _Divider(num_samples, micro_batch_size)
    starts = range(0, num_samples, micro_batch_size)
    parts = [{key: divider.part(value, example.get(key), start) for key, value in whole.items()} for start in starts]
    if not divider.divided:
        raise UnsplittableBatchError(
            f"no input of the batch changes size between {micro_batch_size} and {num_samples} samples; "
            f"inputs are {', '.join(whole)}"
        )
    return parts


class _Divider:
    def __init__(self, num_samples: int, micro_batch_size: int) -> None:
        self._num_samples = num_samples
        self._micro_batch_size = micro_batch_size
        self.divided = False

    def part(self, whole: Any, example: Any, start: int) -> Any:
        if isinstance(whole, torch.Tensor) and isinstance(example, torch.Tensor):
            return self._part_of_tensor(whole, example, start)
        if isinstance(whole, Mapping) and isinstance(example, Mapping):
            return type(whole)({key: self.part(value, example.get(key), start) for key, value in whole.items()})  # type: ignore[call-arg]  # a dict or its like
        if isinstance(whole, list | tuple) and isinstance(example, list | tuple):
            if len(whole) == self._num_samples and len(example) == self._micro_batch_size:
                self.divided = True
                return whole[start : start + self._micro_batch_size]
            if len(whole) == len(example):
                return type(whole)(self.part(item, other, start) for item, other in zip(whole, example, strict=True))
        return whole

    def _part_of_tensor(self, whole: torch.Tensor, example: torch.Tensor, start: int) -> torch.Tensor:
        if whole.dim() != example.dim():
            return whole
        rows = [self._rows_per_sample(*sizes) for sizes in zip(whole.shape, example.shape, strict=True)]
        # Where some dimension counts samples one by one, that is it; else one that holds several rows of each.
        dimension = next((i for i, n in enumerate(rows) if n == 1), next((i for i, n in enumerate(rows) if n), None))
        if dimension is None:
            return whole
        self.divided = True
        per_sample = rows[dimension]
        return whole.narrow(dimension, start * per_sample, self._micro_batch_size * per_sample)

    def _rows_per_sample(self, whole_size: int, example_size: int) -> int:
        """Rows of this dimension that each sample has; 0 where it does not count samples."""
        rows, rest = divmod(whole_size, self._num_samples)
        return rows if rest == 0 and example_size == rows * self._micro_batch_size else 0
