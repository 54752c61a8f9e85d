from __future__ import annotations

import numpy as np
import pytest

from search_spaces.policy import BLOCK, SEGMENT
from tuner.prediction.placement_features import BUDGET, Label
from tuner.prediction.price_prior import price_covariance

#: In an order in which sums come before what they are made of.
LABELS = [
    Label(0, "attention+mlp"),
    Label(0, SEGMENT, 2),
    Label(0, SEGMENT, 3),
    Label(0, "mlp"),
    Label(0, "attention"),
    Label(0, BLOCK),
    Label(1, "mlp"),
    Label(1, "attention+mlp"),
]
MEANS = np.array([0.3, 0.35, 0.33, 0.2, 0.1, 0.34, 0.2, 0.3])


def correlations() -> np.ndarray:
    covariance = price_covariance(LABELS, MEANS)
    np.testing.assert_allclose(covariance, covariance.T)
    assert np.linalg.eigvalsh(covariance).min() > 0
    deviations = np.sqrt(np.diag(covariance))
    return covariance / np.outer(deviations, deviations)


def test_segments_cost_about_what_single_blocks_do() -> None:
    alike = correlations()
    assert alike[1, 5] > 0.9
    assert alike[1, 2] > 0.9


def test_units_together_cost_about_what_each_costs() -> None:
    alike = correlations()
    assert 0.5 < alike[0, 3] < 0.95
    assert 0.2 < alike[0, 4] < alike[0, 3]
    assert alike[3, 4] == 0.0


def test_other_lists_and_units_without_a_label_say_nothing() -> None:
    alike = correlations()
    assert alike[3, 6] == alike[0, 7] == alike[6, 7] == 0.0
    assert alike[0, 5] == 0.0


def test_operations_that_have_no_flops_are_unsure_all_the_same() -> None:
    labels = [Label(0, "norm"), Label(0, "activation"), Label(0, "activation+norm")]
    covariance = price_covariance(labels, np.zeros(3))
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), 0.01)
    assert covariance[0, 2] == pytest.approx(0.0)


def test_a_budget_of_the_compiler_may_save_time_and_tells_of_the_others() -> None:
    labels = [Label(0, "norm"), *(Label(None, BUDGET, budget=budget) for budget in (0.75, 0.5))]
    means = np.array([0.0, 0.03, 0.06])
    covariance = price_covariance(labels, means)
    deviations = np.sqrt(np.diag(covariance))
    assert (deviations[1:] > means[1:]).all()
    assert 0.5 < covariance[1, 2] / (deviations[1] * deviations[2]) < 0.9
    assert covariance[0, 1] == 0.0
