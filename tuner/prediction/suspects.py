"""What candidates share with trials that went wrong, so that no trial is spent on going wrong again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runners.trial import TrialStatus, Verdict
from search_spaces.policy import RecomputePolicy
from tuner.prediction.candidates import Candidates
from tuner.prediction.placement_features import IntArray, PlacementFeatures
from tuner.prediction.tried import Tried


@dataclass(frozen=True)
class Suspects:
    """Attributes:
    labels: That went wrong and never went right.
    batch_indices: Of micro-batch sizes whose division of the batch trains another model.
    whole_indices: Of those that divide nothing; empty unless a division was wrong and none was right. They come first,
        since a model that minds one division minds them all.
    """

    labels: frozenset[int]
    batch_indices: frozenset[int]
    whole_indices: frozenset[int]

    @classmethod
    def of(cls, features: PlacementFeatures, tried: Sequence[Tried]) -> Suspects:
        bad: set[int] = set()
        good: set[int] = set()
        for trial in tried:
            labels = {int(label) for label in np.flatnonzero(features.of(trial.policy).shares)}
            if trial.status in (TrialStatus.FAILED, TrialStatus.TIMED_OUT):
                bad |= labels
            elif trial.recompute_verdict is Verdict.MISMATCH:
                bad |= labels | _budgets_below(features, trial.policy)
            elif trial.status is TrialStatus.COMPLETED:
                good |= labels
        wrong = {features.batch_index(trial.policy) for trial in tried if trial.split_verdict is Verdict.MISMATCH}
        whole: set[int] = set()
        if wrong and not any(trial.split_verdict is Verdict.MATCH for trial in tried):
            whole = {index for index, batch in enumerate(features.batches) if batch.gradient_accumulation_steps == 1}
        return cls(frozenset(bad - good), frozenset(wrong), frozenset(whole))

    @property
    def are_any(self) -> bool:
        return bool(self.labels or self.batch_indices)

    def usable_of(self, candidates: Candidates, rows: IntArray) -> IntArray:
        """Those of the rows that may be tried."""
        batches = candidates.batch_indices[rows]
        shares = candidates.features.shares[rows][:, sorted(self.labels)]
        rows = rows[~np.isin(batches, sorted(self.batch_indices)) & (shares == 0).all(axis=1)]
        undivided = rows[np.isin(candidates.batch_indices[rows], sorted(self.whole_indices))]
        return undivided if len(undivided) else rows


def _budgets_below(features: PlacementFeatures, policy: RecomputePolicy) -> set[int]:
    """Labels of smaller budgets than the policy's: what the compiler rebuilds wrongly, it does within them, too."""
    budget = policy.compile_memory_budget
    return set() if budget is None else {label for other, label in features.budget_labels.items() if other < budget}
