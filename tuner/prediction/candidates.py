"""Policies that may be tried next, with what is predicted of each, as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from search_spaces.policy import RecomputePolicy
from tuner.prediction.placement_features import FloatArray, IntArray, ListFeatures, PlacementFeatures
from tuner.prediction.time_model import TimeWeights

#: Share of the plain peak that a rebuild has to save where the plain step fits as well.
_LEAST_SAVED = 0.01


@dataclass(frozen=True)
class Candidates:
    """Some policies.

    Attributes:
        batch_indices: Which micro-batch size each has, shape (num_candidates,).
        features: Of each, shape (num_candidates, num_labels).
        peaks_bytes: Predicted, shape (num_candidates,); not a number where nothing is known.
        policy: From an index to the canonical policy.
    """

    batch_indices: IntArray
    features: ListFeatures
    peaks_bytes: FloatArray
    policy: Callable[[int], RecomputePolicy]

    def __len__(self) -> int:
        return len(self.batch_indices)

    def times(self, weights: TimeWeights) -> FloatArray:
        """Of all candidates under one set of weights, shape (num_candidates,)."""
        times = np.empty(len(self))
        for batch_index, rows, shares, tilts in self._by_batch:
            times[rows] = weights.times(batch_index, shares, tilts)
        return times

    @cached_property
    def _by_batch(self) -> list[tuple[int, IntArray, FloatArray, FloatArray]]:
        groups = []
        for batch_index in np.unique(self.batch_indices):
            rows = np.flatnonzero(self.batch_indices == batch_index)
            groups.append((int(batch_index), rows, self.features.shares[rows], self.features.tilts[rows]))
        return groups


def without_waste(candidates: Candidates, rows: IntArray, features: PlacementFeatures) -> IntArray:
    """Without those that rebuild something and save next to nothing, where the plain step of their size is a row, too.

    Where the worst moment is the update, or lies beside the blocks, these are most of what a size offers: faster by a
    lucky measurement only, and no place on the front.
    """
    shares, kinds = candidates.features.shares[rows], 2 * candidates.batch_indices[rows]
    if features.reshard_label is not None:  # Blocks that stay whole rebuild nothing: faster, for more memory.
        kinds = kinds + (shares[:, features.reshard_label] > 0)
        shares = np.delete(shares, features.reshard_label, axis=1)
    rebuilds = shares.any(axis=1)
    peaks = candidates.peaks_bytes[rows]
    of_plain = np.full(2 * len(features.batches), np.inf)
    np.minimum.at(of_plain, kinds[~rebuilds], peaks[~rebuilds])
    return rows[~(rebuilds & (peaks >= of_plain[kinds] * (1 - _LEAST_SAVED)))]


def joined(first: Candidates, second: Candidates) -> Candidates:
    """All of the first, then all of the second."""

    def policy(index: int) -> RecomputePolicy:
        return first.policy(index) if index < len(first) else second.policy(index - len(first))

    return Candidates(
        np.concatenate([first.batch_indices, second.batch_indices]),
        ListFeatures(
            np.vstack([first.features.shares, second.features.shares]),
            np.vstack([first.features.tilts, second.features.tilts]),
        ),
        np.concatenate([first.peaks_bytes, second.peaks_bytes]),
        policy,
    )


class CandidateSource(Protocol):
    """Where candidates come from."""

    def candidates(self, weights: Sequence[TimeWeights], cap_bytes: float) -> Candidates:
        """Every policy that is the fastest under the cap, or on the front below it, for one of the weights.

        May hold more than those.

        Args:
            weights: Sets of weights that the time model may have.
            cap_bytes: On predicted peaks.
        """


def listed(policies: Sequence[RecomputePolicy], peaks_bytes: FloatArray, features: PlacementFeatures) -> Candidates:
    """The policies as candidates, in the same order."""
    of_each = [features.of(policy) for policy in policies]
    shape = (len(policies), features.num_labels)
    return Candidates(
        np.array([features.batch_index(policy) for policy in policies], dtype=np.int64),
        ListFeatures(
            np.array([f.shares for f in of_each]).reshape(shape), np.array([f.tilts for f in of_each]).reshape(shape)
        ),
        peaks_bytes,
        policies.__getitem__,
    )


class ListedCandidates:
    """A fixed list of policies whose peaks are known."""

    def __init__(
        self, policies: Sequence[RecomputePolicy], peaks_bytes: FloatArray, features: PlacementFeatures
    ) -> None:
        self._candidates = listed(policies, peaks_bytes, features)

    def candidates(self, weights: Sequence[TimeWeights], cap_bytes: float) -> Candidates:
        return self._candidates


class JoinedSources:
    """What either of two sources has."""

    def __init__(self, first: CandidateSource, second: CandidateSource) -> None:
        self._first = first
        self._second = second

    def candidates(self, weights: Sequence[TimeWeights], cap_bytes: float) -> Candidates:
        return joined(self._first.candidates(weights, cap_bytes), self._second.candidates(weights, cap_bytes))
