"""Candidates of a search that tries blocks divided again after forward, and blocks that stay whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from search_spaces.policy import RecomputePolicy
from tuner.prediction.candidates import Candidates, CandidateSource
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
        shares_of_second = second.features.shares.copy()
        shares_of_second[:, self._label] = 1.0

        def policy(index: int) -> RecomputePolicy:
            if index < len(first):
                return first.policy(index)
            return replace(second.policy(index - len(first)), reshard_after_forward=False).canonical()

        return Candidates(
            np.concatenate([first.batch_indices, second.batch_indices]),
            ListFeatures(
                np.vstack([first.features.shares, shares_of_second]),
                np.vstack([first.features.tilts, second.features.tilts]),
            ),
            np.concatenate([first.peaks_bytes, second.peaks_bytes]),
            policy,
        )
