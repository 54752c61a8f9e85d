"""What the time of a pipeline's step is explained by: above all what its slowest stage recomputes.

With M micro-batches, 1F1B takes as long as the slowest stage takes for M - 1 of them, and each stage for one: filling
and draining. In units of the slowest stage of the plain model, stage s takes ``loads[s]`` and what it rebuilds; what
the slowest stage rebuilds counts for each micro-batch, what the others rebuild once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from search_spaces.choices import SearchChoices
from search_spaces.policy import BatchShape, RecomputePolicy
from search_spaces.stage_memory import PipelineStages
from tuner.prediction.placement_features import FloatArray, ListFeatures, PlacementFeatures, cells_of


class PipelineFeatures(PlacementFeatures):
    """Features with which a step's time adds up as that of a model in one process does.

    Args:
        loads: FLOPs of each stage of the plain model over those of the one that has most, shape (num_stages,).
        whole_load: FLOPs of the plain model over those of that stage.
        price_means: What recomputing all blocks under each label is expected to add, in plain steps of one process.
    """

    def __init__(
        self,
        choices: SearchChoices,
        stages: PipelineStages,
        *,
        loads: Sequence[float],
        whole_load: float,
        price_means: FloatArray,
    ) -> None:
        super().__init__(choices)
        self.stages = stages
        self.loads: FloatArray = np.asarray(loads, dtype=np.float64)
        self._whole_load = whole_load
        self._price_means = price_means

    def of(self, policy: RecomputePolicy) -> ListFeatures:
        by_stage = np.zeros((self.stages.num_stages, self.num_labels))
        for placement in policy.placement:
            for region in placement.regions:
                for cell in cells_of(region):
                    by_stage[self.stages.stage_of(cell.first)] += self.of_cells(0, [cell]).shares
        if self.has_rng_label and not policy.preserve_rng_state:
            by_stage[:, -1] = by_stage[:, :-1].sum(axis=1)
        return ListFeatures(self._of_step(by_stage, policy.batch), np.zeros(self.num_labels))

    def stage_times(self, shares: FloatArray, stage: int, prices: FloatArray) -> FloatArray:
        """One micro-batch on the stage, in units of the slowest plain stage.

        Args:
            shares: Of the whole list's blocks, shape (..., num_labels).
            prices: Of the labels, in plain steps.
        """
        times: FloatArray = self.loads[stage] + self._whole_load * (shares @ prices)
        return times

    def base_means(self) -> FloatArray:
        """What a plain step is expected to take at each micro-batch size, the largest size's as unit: its bubble."""
        bubbles = np.array([self._length(batch) / batch.gradient_accumulation_steps for batch in self.batches])
        means: FloatArray = bubbles / bubbles[0]
        return means

    def _length(self, batch: BatchShape) -> float:
        """Of a plain step, in micro-batches of the slowest stage."""
        return float(batch.gradient_accumulation_steps - 1 + self.loads.sum())

    def _of_step(self, by_stage: FloatArray, batch: BatchShape) -> FloatArray:
        rebuilds = self._whole_load * (by_stage @ self._price_means)
        times = self.loads + rebuilds
        slowest = int(times.argmax())
        # A stage that has less to do than the slowest one rebuilds for nothing until it has caught up.
        counts = (times[slowest] - 1) / rebuilds[slowest] if rebuilds[slowest] > 0 else 0.0
        num_others = batch.gradient_accumulation_steps - 1
        shares = num_others * counts * by_stage[slowest] + by_stage.sum(axis=0)
        scaled: FloatArray = self._whole_load * shares / self._length(batch)
        return scaled
