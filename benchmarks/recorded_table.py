"""A search problem whose trials answer what was once measured, policy by policy, of a real model."""

from __future__ import annotations

import statistics
from functools import cached_property
from pathlib import Path

import numpy as np
from search_problem import Actual, Best
from table_file import Row, Table, TableError

from runners.replay_runner import Outcome
from runners.trial import TrialResult, TrialSpec, TrialStatus, failed_trial
from search_spaces.ablation import plain_policies
from search_spaces.policy import NONE, SEGMENT, BlockListPlacement, RecomputePolicy, units_of
from search_spaces.registry import make_space
from tuner.forecast import Forecast
from tuner.objective import Objective
from tuner.prediction.candidates import ListedCandidates
from tuner.prediction.front_filling import hypervolume
from tuner.prediction.next_policy import PolicyProposer
from tuner.prediction.placement_features import Label, PlacementFeatures

#: Share of a plain step that is forward: its backward takes two products for each of its own.
_FORWARD_SHARE = 1 / 3
#: Larger spaces are not counted through.
_MOST_COUNTED = 1_000_000


class RecordedTable:
    """Every trial of a policy is its row of the table; the figures of the table are the truth."""

    enforces_cap = False

    def __init__(self, table: Table) -> None:
        """Takes a table.

        Raises:
            TableError: There is nothing to search for in it.
        """
        self.name = table.name
        self.choices = table.choices
        self.device = table.device
        self._rows = table.rows
        completed = [row for row in table.rows.values() if row.status is TrialStatus.COMPLETED]
        self._is_relative = all(row.relative_speed is not None for row in completed)
        self.objective = Objective(table.cap_bytes, proof_required=False, has_reference=self._is_relative)
        self._refuse_missing_baseline(table.path)
        self.best = self._find_best(table.path)

    @property
    def num_policies(self) -> int:
        return len(self._rows)

    def _refuse_missing_baseline(self, path: Path) -> None:
        baseline = plain_policies(self.choices)[0]
        row = self._rows.get(baseline)
        if row is None or row.status is TrialStatus.FAILED:
            raise TableError(
                f"{path}: the row of the baseline ({baseline.summary()}) is missing or FAILED, and every search "
                "begins with it; add what was measured of it"
            )

    def _find_best(self, path: Path) -> Best:
        known = [actual for policy in self._rows if (actual := self.actual(policy)) is not None]
        times = np.array([actual.time for actual in known])
        peaks = np.array([actual.peak_bytes for actual in known])
        cap = self.objective.memory_cap_bytes
        within = times[peaks <= cap]
        if not len(within):
            least = "no row has one" if not len(peaks) else f"the least one is {int(peaks.min())}"
            raise TableError(
                f"{path}: memory_cap_bytes is {cap}, and no row has a step time and a peak within it ({least}); "
                "give a larger cap with --memory-cap, or another table"
            )
        return Best(float(within.min()), hypervolume(peaks, 1 / times, cap))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the figures must know of the table, one sentence each."""
        notes = []
        space = make_space("two_action", self.choices)
        num_policies = space.count_up_to(_MOST_COUNTED)
        num_missing = num_policies - len(self._rows)
        if num_missing > 0:
            notes.append(
                f"{num_missing} of the {num_policies} policies of the search are not in the table; a trial of one "
                "FAILS, and model_guided, which has no prediction of their peaks, never proposes them."
            )
        num_measured = sum(row.predicted_peak_memory_bytes is None for row in self._rows.values())
        if num_measured:
            notes.append(
                f"{num_measured} of {len(self._rows)} rows have no predicted_peak_memory_bytes: their measured peak "
                "stands in for the prediction, so model_guided knows more here than it would of a model."
            )
        return tuple(notes)

    def forecast(self) -> Forecast:
        features = PlacementFeatures(self.choices)
        predicted = {policy: peak for policy, row in self._rows.items() if (peak := _predicted_peak(row)) is not None}
        source = ListedCandidates(list(predicted), np.array(list(predicted.values()), dtype=np.float64), features)
        prices = np.array([self._price(label) for label in features.labels])
        cap_bytes = self.objective.memory_cap_bytes
        return Forecast(PolicyProposer(source, features, prices, cap_bytes, 0.0, predicted.get))

    def outcome(self, seed: int) -> Outcome:
        def answer(spec: TrialSpec) -> TrialResult:
            row = self._rows.get(spec.policy.canonical())
            if row is None:
                return failed_trial(spec, TrialStatus.FAILED, f"no trial of policy {spec.policy.key} was recorded")
            return _as_result(spec, row)

        return answer

    def actual(self, policy: RecomputePolicy) -> Actual | None:
        row = self._rows.get(policy.canonical())
        if row is None or row.status is not TrialStatus.COMPLETED or row.peak_memory_bytes is None:
            return None
        if self._is_relative and row.relative_speed is not None:
            return Actual(1 / row.relative_speed, row.peak_memory_bytes)
        assert row.step_time_s is not None, "rows that completed have one"
        return Actual(row.step_time_s / policy.batch.global_batch_size, row.peak_memory_bytes)

    def _price(self, label: Label) -> float:
        """What recomputing a whole list under the label adds in FLOPs, as measured where it was, else a plain guess.

        The guess: forward is a third of a step, lists share it by their number of blocks, and the units of a block are
        alike. It only has to be of the right size: the time model takes a price to be off by half of itself.
        """
        if label.list_index is None:
            return 0.0
        measured = self._measured_price(label)
        if measured is not None:
            return measured
        of_lists = self.choices.shape.block_lists
        blocks = of_lists[label.list_index]
        share = _FORWARD_SHARE * blocks.num_blocks / sum(each.num_blocks for each in of_lists)
        units = [name for name in units_of(label.action) if name in blocks.unit_names]
        return share * len(units) / len(blocks.unit_names) if units else share

    def _measured_price(self, label: Label) -> float | None:
        """From the rows that recompute all blocks of this list so, and nothing else; None where there are none."""
        placement: list[BlockListPlacement] = []
        for index, of_list in enumerate(self.choices.block_lists):
            action = label.action if index == label.list_index else NONE
            if action not in of_list.actions:
                return None
            size = label.segment_size if action == SEGMENT else None
            placement.append(of_list.place([action] * of_list.num_modules, size))
        rng = self.choices.rng_choices[0]
        policies = [RecomputePolicy(batch, tuple(placement), rng).canonical() for batch in self.choices.batches]
        rows = [self._rows[policy] for policy in policies if policy in self._rows]
        ratios = [row.recomputed_flops_ratio for row in rows if row.recomputed_flops_ratio is not None]
        return statistics.median(ratios) if ratios else None


def _predicted_peak(row: Row) -> int | None:
    return row.predicted_peak_memory_bytes or row.peak_memory_bytes


def _as_result(spec: TrialSpec, row: Row) -> TrialResult:
    time = row.step_time_s
    return TrialResult(
        trial_number=spec.trial_number,
        policy=spec.policy,
        status=row.status,
        reason=row.reason,
        step_time_s=time,
        step_time_spread_s=row.step_time_spread_s,
        samples_per_second=None if time is None else spec.policy.batch.global_batch_size / time,
        relative_speed=row.relative_speed,
        relative_speed_spread=row.relative_speed_spread,
        peak_memory_bytes=row.peak_memory_bytes,
    )
