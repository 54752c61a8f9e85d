"""Which prices are alike before anything was measured: what is rebuilt together costs about what its parts cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from search_spaces.policy import BLOCK, SEGMENT
from tuner.prediction.placement_features import FloatArray, Label

#: Standard deviation of a price around its prior mean: a share of it, and a floor for operations that have no FLOPs.
_RELATIVE, _FLOOR = 0.3, 0.01
#: The same floor for a budget of the compiler, and what all budgets share: each may even save time, since what is
#: rebuilt need not be written and read.
_FLOOR_OF_BUDGET, _SHARED_BY_BUDGETS = 0.03, 0.05
#: The same of what a label adds to what it is made of: units that are rebuilt one after the other, and blocks of a
#: segment, which is rebuilt at once.
_RELATIVE_OF_SUM, _RELATIVE_OF_SEGMENT = 0.12, 0.06


def price_covariance(labels: Sequence[Label], price_means: FloatArray) -> FloatArray:
    """Of what recomputing all blocks of a list costs under each label, shape (num_labels, num_labels).

    Args:
        price_means: What it is expected to cost, in plain steps, shape (num_labels,).
    """
    positions = {label: position for position, label in enumerate(labels)}
    made_of = [_made_of(label, positions) for label in labels]
    # Each price as a sum of independent parts: its own, and those of the labels that it is made of, which are made of
    # none themselves.
    parts = np.diag([_own_deviation(*of) for of in zip(labels, price_means, made_of, strict=True)])
    for position, of in enumerate(made_of):
        sum_of_parts = price_means[of].sum()
        if sum_of_parts > 0:
            parts[position] += parts[of].sum(axis=0) * price_means[position] / sum_of_parts
    parts = np.column_stack([parts, [_SHARED_BY_BUDGETS * (label.budget is not None) for label in labels]])
    covariance: FloatArray = parts @ parts.T
    return covariance


def _own_deviation(label: Label, price_mean: float, made_of: Sequence[int]) -> float:
    relative = _RELATIVE if not made_of else _RELATIVE_OF_SEGMENT if label.action == SEGMENT else _RELATIVE_OF_SUM
    return relative * price_mean + (_FLOOR if label.budget is None else _FLOOR_OF_BUDGET)


def _made_of(label: Label, positions: dict[Label, int]) -> list[int]:
    """Positions of the labels whose work it does as well; none where one of these is no label."""
    if label.action == SEGMENT:
        parts = [Label(label.list_index, BLOCK)]
    elif "+" in label.action:
        parts = [Label(label.list_index, unit) for unit in label.action.split("+")]
    else:
        return []
    return [positions[part] for part in parts] if all(part in positions for part in parts) else []
