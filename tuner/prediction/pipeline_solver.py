"""The fastest placement of each stage of a pipeline under a cap, exactly.

Each stage has a memory limit of its own, with its own number of micro-batches in flight, and the length of the step
grows with the time of every stage. So the stages decide apart: for each cap, the fastest placement of every stage that
keeps within it makes the fastest step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from search_spaces.base import SearchSpace
from search_spaces.choices import SearchChoices
from search_spaces.memory_profile import Moment, StepProfile, Stretch
from search_spaces.memory_timeline import MemoryTimeline
from search_spaces.policy import BlockListPlacement, RecomputePolicy
from search_spaces.stage_memory import StageHeights, StageTimeline, stage_moments
from tuner.prediction.candidates import Candidates, listed
from tuner.prediction.pipeline_features import PipelineFeatures
from tuner.prediction.placement_features import IntArray
from tuner.prediction.placement_table import PlacementTable
from tuner.prediction.time_model import TimeWeights

#: Sets of weights that are solved for.
_MOST_SOLVED = 9
#: Caps below the one asked for at which the mean weights are solved for, to see the front.
_MOST_CAPS = 24


class PipelineSolver:
    """Answers for one model, cut in stages, and one search.

    Args:
        timeline: Of a profile that does not refuse.
        space: What a policy must be expressible in.
    """

    def __init__(
        self, choices: SearchChoices, features: PipelineFeatures, timeline: StageTimeline, space: SearchSpace
    ) -> None:
        self._choices = choices
        self._features = features
        self._timeline = timeline
        self._space = space
        (of_list,) = choices.block_lists
        stages = timeline.stages
        self._tables = [
            PlacementTable(
                0,
                replace(of_list, modules=tuple(m for m in of_list.modules if stages.stage_of(m[0]) == stage)),
                features,
            )
            for stage in range(stages.num_stages)
        ]
        #: By micro-batch size and stage, shape (num_rows,).
        self._peaks = [self._peaks_at(batch_index) for batch_index in range(len(features.batches))]
        self._known: dict[tuple[int, tuple[int, ...]], RecomputePolicy | None] = {}

    def fastest(self, batch_index: int, weights: TimeWeights, cap_bytes: float) -> tuple[int, ...] | None:
        """The row of each stage's table; None where some stage fits in no way."""
        rows = []
        for stage, (table, peaks) in enumerate(zip(self._tables, self._peaks[batch_index], strict=True)):
            within = np.flatnonzero(peaks <= cap_bytes)
            if not len(within):
                return None
            prices = weights.prices[batch_index] / weights.base[batch_index]
            times = self._features.stage_times(table.features.shares[within], stage, prices)
            # Of those as fast the one with less memory.
            rows.append(int(within[np.lexsort((peaks[within], np.round(times, 9)))[0]]))
        return tuple(rows)

    def candidates(self, weights: Sequence[TimeWeights], cap_bytes: float) -> Candidates:
        found: dict[RecomputePolicy, float] = {}
        for number, of_draw in enumerate(weights[:_MOST_SOLVED]):
            for batch_index in range(len(self._peaks)):
                for cap in self._caps(batch_index, cap_bytes) if number == 0 else [cap_bytes]:
                    rows = self.fastest(batch_index, of_draw, cap)
                    policy = None if rows is None else self.policy(batch_index, rows)
                    if rows is not None and policy is not None:
                        found[policy] = self.peak(batch_index, rows)
        if self._features.has_rng_label:
            found |= {replace(p, preserve_rng_state=False): peak for p, peak in found.items() if p.recomputes}
        return listed(list(found), np.array(list(found.values()), dtype=np.float64), self._features)

    def peak(self, batch_index: int, rows: Sequence[int]) -> float:
        """Of the worst stage, in bytes."""
        return float(max(peaks[row] for peaks, row in zip(self._peaks[batch_index], rows, strict=True)))

    def policy(self, batch_index: int, rows: tuple[int, ...]) -> RecomputePolicy | None:
        """The canonical policy of these rows; None where the stages' segments are of different sizes."""
        if (batch_index, rows) not in self._known:
            parts = [table.placement(row) for table, row in zip(self._tables, rows, strict=True)]
            first = parts[0]
            regions = tuple(region for part in parts for region in part.regions)
            whole = BlockListPlacement(first.blocks, first.num_blocks, first.units, regions)
            policy = self._choices.policy(self._features.batches[batch_index], (whole,))
            self._known[batch_index, rows] = policy if self._is_sayable(policy) else None
        return self._known[batch_index, rows]

    def _is_sayable(self, policy: RecomputePolicy) -> bool:
        try:
            self._space.encode(policy)
        except ValueError:
            return False
        return True

    def _caps(self, batch_index: int, cap_bytes: float) -> list[float]:
        """The cap, and some below it at which less memory takes another placement."""
        of_stages = self._peaks[batch_index]
        least = max(float(peaks.min()) for peaks in of_stages)
        levels = np.unique(np.concatenate(of_stages))
        levels = levels[(levels >= least) & (levels <= cap_bytes)]
        if len(levels) > _MOST_CAPS:
            levels = levels[np.linspace(0, len(levels) - 1, _MOST_CAPS).round().astype(np.int64)]
        return [cap_bytes, *map(float, levels)]

    def _peaks_at(self, batch_index: int) -> list[IntArray]:
        batch = self._features.batches[batch_index]
        step = self._timeline.timeline.step_profile(batch.micro_batch_size)
        num_micro_batches = batch.gradient_accumulation_steps
        of_stages = []
        for stage, table in enumerate(self._tables):
            heights = self._heights(table, step, self._timeline.timeline, stage)
            first = self._timeline.first_step(batch.micro_batch_size, stage, num_micro_batches)
            if first is not None and self._timeline.first_timeline is not None:
                of_first = self._heights(table, first, self._timeline.first_timeline, stage)
                heights = replace(heights, first_backward=of_first.backward)
            of_stages.append(self._timeline.peak_of(step, stage, num_micro_batches, heights))
        return of_stages

    def _heights(self, table: PlacementTable, step: StepProfile, timeline: MemoryTimeline, stage: int) -> StageHeights:
        """Of every row of the stage's table."""
        own = stage_moments(step, self._timeline.stages, stage)
        forward = [step.moments[index] for index in own.forward]
        backward = [step.moments[index] for index in own.backward]
        backward.insert(1, Moment("fixed", Stretch(own.staying_bytes, max(own.staying_bytes, 0))))
        terms = table.terms(step.lists[0], timeline.cell, forward, backward)
        return StageHeights(
            kept=terms.forward_delta + own.shared_bytes - own.released_bytes,
            forward=terms.forward_rise + own.repeated_bytes,
            backward=terms.backward_rise,
        )
