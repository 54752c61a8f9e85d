"""Candidates of a search that tries blocks divided again after forward, and blocks that stay whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from search_spaces.policy import RecomputePolicy
from tuner.prediction.candidates import Candidates, CandidateSource, joined
from tuner.prediction.placement_features import ListFeatures
from tuner.prediction.time_model import TimeWeights


class BothReshardings:
    """Puts two sources together, each with the peaks of its own way.

    Args:
        resharded: Policies whose blocks are divided again.
        whole: The same policies with the peaks of blocks that stay whole.
        label: Position of the feature by which the two differ.
    """

    def __init__(self, resharded: CandidateSource, whole: CandidateSource, label: int) -> None:
        self._resharded = resharded
        self._whole = whole
        self._label = label

    def candidates(self, weights: Sequence[TimeWeights], cap_bytes: float) -> Candidates:
        first, second = (source.candidates(weights, cap_bytes) for source in (self._resharded, self._whole))
        shares = second.features.shares.copy()
        shares[:, self._label] = 1.0

        def policy(index: int) -> RecomputePolicy:
            return replace(second.policy(index), reshard_after_forward=False).canonical()

        features = ListFeatures(shares, second.features.tilts)
        return joined(first, Candidates(second.batch_indices, features, second.peaks_bytes, policy))
