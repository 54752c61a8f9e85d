"""What an earlier study of the same model measured, in the terms of the time model."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from runners.trial import ModelInspection, TrialResult, TrialStatus
from search_spaces.choices import SearchChoices
from search_spaces.policy import RecomputePolicy
from tuner.config import SearchConfig
from tuner.objective import Objective
from tuner.prediction.placement_features import PlacementFeatures
from tuner.prediction.tried import Tried
from tuner.results import StudyResults, TrialRecord
from tuner.sampling.tried_policies import tried_of
from tuner.user_error import UserError


class OtherModelError(UserError):
    """The earlier study says nothing of this search; the message is one line for the user."""


@dataclass(frozen=True)
class StudyTimes:
    """Attributes:
    tried: Its trials that this search could try as well.
    seconds_per_unit: From the unit of their times to seconds per step.
    device: It ran on; None where that was not recorded.
    """

    study: str
    tried: tuple[Tried, ...]
    seconds_per_unit: float
    device: str | None


def study_times(
    results: StudyResults, config: SearchConfig, inspection: ModelInspection, choices: SearchChoices
) -> StudyTimes:
    """The trials of an earlier study that calibrate predictions of this search.

    Raises:
        OtherModelError: It is of another model or batch, or has measured nothing that this search may try.
    """
    differences = list(_differences(results, config, inspection))
    if differences:
        raise OtherModelError(
            f"--study {results.study} is not of this model and batch: {'; '.join(differences)}; name a study of the "
            "same model, or leave --study out"
        )
    features = PlacementFeatures(choices)
    records = [record for record in results.trials if _may_be_tried(record.to_policy(), choices, features)]
    timed = [record for record in records if record.status is TrialStatus.COMPLETED and record.step_time_s is not None]
    if not timed:
        raise OtherModelError(
            f"--study {results.study} has measured no step time of a policy that this search may try; name another "
            "study, or leave --study out"
        )
    has_reference = all(record.relative_speed is not None for record in timed)
    objective = Objective(results.memory_cap_bytes, has_reference=has_reference)
    device = results.environment.get("device")
    return StudyTimes(
        study=results.study,
        tried=tuple(tried_of(_result(record), record.to_policy(), objective) for record in records),
        seconds_per_unit=_reference_step_time_s(timed) if has_reference else float(config.batch.global_batch_size),
        device=None if device is None else str(device),
    )


def _differences(results: StudyResults, config: SearchConfig, inspection: ModelInspection) -> Iterator[str]:
    """What a study of the same work must share, ``name: its value, here this one``."""
    model, shape = results.model, inspection.shape
    here = {blocks.path: (blocks.num_blocks, blocks.kind, dict(blocks.units)) for blocks in shape.block_lists}
    there = {blocks.path: (blocks.num_blocks, blocks.kind, blocks.units) for blocks in model.block_lists}
    facts: list[tuple[str, object, object]] = [
        ("parameters", model.num_parameters, shape.num_parameters),
        ("blocks", _listed(there), _listed(here)),
        ("units", {path: units for path, (*_, units) in there.items()}, {p: units for p, (*_, units) in here.items()}),
        ("tokens per sample", model.tokens_per_sample, inspection.tokens_per_sample),
    ]
    before = results.search
    for section, key, value in (
        ("batch", "global_batch_size", config.batch.global_batch_size),
        ("batch", "sequence_length", _as_written(config.batch.sequence_length)),
        ("model", "dtype", config.model.dtype),
        ("model", "autocast", config.model.autocast),
        ("runner", "data_parallel_degree", config.runner.data_parallel_degree),
    ):
        if key in before.get(section, {}):
            facts.append((f"{section}.{key}", before[section][key], value))
    for name, old, new in facts:
        if old != new:
            yield f"{name} {old} there and {new} here"


def _as_written(lengths: int | tuple[int, ...] | None) -> int | list[int] | None:
    """As the results of a study hold it."""
    return list(lengths) if isinstance(lengths, tuple) else lengths


def _listed(lists: dict[str, tuple[int, str, dict[str, str]]]) -> str:
    return ", ".join(f"{path} {count} x {kind}" for path, (count, kind, _) in lists.items()) or "none"


def _may_be_tried(policy: RecomputePolicy, choices: SearchChoices, features: PlacementFeatures) -> bool:
    if policy.batch not in choices.batches:
        return False
    try:
        features.of(policy)
    except KeyError:
        return False  # An action that this search does not try has no price.
    return True


def _result(record: TrialRecord) -> TrialResult:
    known = TrialResult.model_fields.keys() & TrialRecord.model_fields.keys() - {"policy"}
    measured = {name: getattr(record, name) for name in known}
    return TrialResult(trial_number=record.number, policy=record.to_policy(), **measured)


def _reference_step_time_s(records: Sequence[TrialRecord]) -> float:
    return statistics.median(
        record.reference_step_time_s for record in records if record.reference_step_time_s is not None
    )
