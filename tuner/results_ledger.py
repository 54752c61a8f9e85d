"""A study's results as they come in: what results.json would say at any moment."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from typing import Any

from runners.diagnosis.records import UnitCost
from runners.trial import ModelInspection, TrialResult
from search_spaces.policy import policy_to_dict
from tuner.objective import Objective
from tuner.pareto import Standings
from tuner.results import BlockListRecord, KeepSetRecord, ModelRecord, StudyResults, StudyStatus, TrialRecord
from tuner.speed_ratio import Playoff

_FIELDS = set(TrialRecord.model_fields)


class ResultsLedger:
    """A study's results as they come in, and the whole of results.json at any moment.

    A trial's record is made once and made anew only where its place changes: on the front or not, the best or not. So
    what is the same object as before is as before.

    Attributes:
        standings: Of the results so far.
        study_id: What tells the study from every other one; None before it is known.
    """

    def __init__(
        self,
        *,
        study: str,
        search: Mapping[str, Any],
        inspection: ModelInspection,
        environment: Mapping[str, Any],
        baseline_key: str,
        objective: Objective,
    ) -> None:
        """Stores what is the same for all results.

        Args:
            search: The resolved search file, without credentials.
            baseline_key: Key of the plain policy that everything is compared with.
        """
        self._study = study
        self.study_id: str | None = None
        self._search = dict(search)
        self._environment = dict(environment)
        self._model = model_record(inspection)
        self._baseline_key = baseline_key
        self._objective = objective
        self.standings = Standings(objective)
        #: In order of number, and their numbers.
        self._records: list[TrialRecord] = []
        self._numbers: list[int] = []
        self._baselines: list[int] = []
        self._placed: set[int] = set()
        self._last: tuple[object, StudyResults] | None = None

    def add(self, result: TrialResult) -> None:
        """Takes the result of a further trial in.

        Raises:
            ValueError: The trial has a result already.
        """
        number = result.trial_number
        index = bisect_left(self._numbers, number)
        if self._numbers[index : index + 1] == [number]:
            raise ValueError(f"trial {number} has a result already; each trial ends once")
        record = trial_record(result, self._objective, baseline_key=self._baseline_key)
        self._records.insert(index, record)
        self._numbers.insert(index, number)
        if record.is_baseline:
            insort(self._baselines, number)
        self.standings.add(result)

    def results(
        self,
        *,
        status: StudyStatus,
        stop_reason: str | None,
        playoff: Playoff | None = None,
        unit_costs: Sequence[UnitCost] = (),
    ) -> StudyResults:
        """Everything that is known of the study now.

        Args:
            playoff: Times of the closest trials in turn; None before there was a playoff.
            unit_costs: What each block and unit costs to keep and to rebuild; empty where that was not measured.
        """
        moment = (len(self._records), status, stop_reason, playoff, len(unit_costs))
        if self._last is None or self._last[0] != moment:
            self._last = (moment, self._build(status, stop_reason, playoff, unit_costs))
        return self._last[1]

    def _build(
        self, status: StudyStatus, stop_reason: str | None, playoff: Playoff | None, unit_costs: Sequence[UnitCost]
    ) -> StudyResults:
        members, winner = self.standings.front_with_winner(playoff)
        front = [result.trial_number for result in members]
        best = None if winner is None else winner.result.trial_number
        self._place(set(front), best)
        # Made of our own records, thousands of which need not be checked again for each one that is added.
        return StudyResults.model_construct(
            schema_version=1,
            study=self._study,
            study_id=self.study_id,
            status=status,
            stop_reason=stop_reason,
            memory_cap_bytes=self._objective.memory_cap_bytes,
            search=self._search,
            environment=self._environment,
            model=self._model,
            baseline=self._records[bisect_left(self._numbers, self._baselines[-1])] if self._baselines else None,
            trials=list(self._records),
            front=front,
            best=best,
            playoff=playoff,
            unit_costs=list(unit_costs),
        )

    def _place(self, front: set[int], best: int | None) -> None:
        for number in front | self._placed:
            index = bisect_left(self._numbers, number)
            record = self._records[index]
            place = {"on_front": number in front, "is_best": number == best}
            if (record.on_front, record.is_best) != (place["on_front"], place["is_best"]):
                self._records[index] = record.model_copy(update=place)
        self._placed = front


def trial_record(result: TrialResult, objective: Objective, *, baseline_key: str) -> TrialRecord:
    """One trial as results.json and MLflow show it, not compared with others yet."""
    score = objective.score(result)
    policy = result.policy
    key = policy.key
    time_s, spread_s = _predicted_step_time_s(result, objective)
    measured = result.model_dump(
        exclude={"trial_number", "policy", "detail", "verification", "memory_bytes", "communication", "prediction"}
    )
    # From values that were checked when they came in, and with one set of field names for all of thousands of records.
    return TrialRecord.model_construct(
        _FIELDS,
        number=result.trial_number,
        feasible=score.feasible,
        infeasible_reason=score.infeasible_reason,
        on_front=False,
        is_best=False,
        is_baseline=key == baseline_key,
        policy=policy_to_dict(policy),
        policy_key=key,
        policy_summary=policy.summary(),
        micro_batch_size=policy.batch.micro_batch_size,
        gradient_accumulation_steps=policy.batch.gradient_accumulation_steps,
        data_parallel_degree=policy.batch.data_parallel_degree,
        global_batch_size=policy.batch.global_batch_size,
        predicted_peak_memory_bytes=None if result.prediction is None else result.prediction.peak_memory_bytes,
        predicted_stage_peak_memory_bytes=(
            None if result.prediction is None else result.prediction.stage_peak_memory_bytes
        ),
        predicted_step_time_s=_finite(time_s),
        predicted_step_time_spread_s=_finite(spread_s),
        memory_bytes=result.memory_bytes,
        communication=result.communication,
        verification=result.verification,
        **{name: _finite(value) for name, value in measured.items()},
    )


def _predicted_step_time_s(result: TrialResult, objective: Objective) -> tuple[float | None, float | None]:
    """The predicted step time in seconds and its standard deviation, on the machine as it was during the trial.

    What is predicted is the time relative to the interleaved reference, where there is one: how busy the machine will
    be, nobody can say. So the reference's time beside the trial makes seconds of it.
    """
    prediction = result.prediction
    if prediction is None or prediction.time is None:
        return None, None
    batch = result.policy.batch
    seconds_per_unit = result.reference_step_time_s if objective.has_reference else float(batch.global_batch_size)
    if seconds_per_unit is None:
        return None, None
    deviation = prediction.time_deviation
    return prediction.time * seconds_per_unit, None if deviation is None else deviation * seconds_per_unit


def _finite(value: Any) -> Any:
    """None where a figure is no number: JSON has no word for that, and nobody has measured it."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def model_record(inspection: ModelInspection) -> ModelRecord:
    """What results.json says of the model."""
    shape = inspection.shape
    return ModelRecord(
        model_class=inspection.model_class,
        num_parameters=shape.num_parameters,
        tokens_per_sample=inspection.tokens_per_sample,
        has_own_recompute=inspection.has_own_recompute,
        block_lists=[
            BlockListRecord(
                path=blocks.path,
                kind=blocks.kind,
                num_blocks=blocks.num_blocks,
                units=dict(blocks.units),
                aliases=[list(group) for group in blocks.aliases],
                segment_refusal=blocks.segment_refusal,
                keep_sets=[KeepSetRecord(asked=each.asked, keep=list(each.keep)) for each in blocks.keep_sets],
                keeps_statistics=blocks.keeps_statistics,
            )
            for blocks in shape.block_lists
        ],
        notes=list(shape.notes),
    )
