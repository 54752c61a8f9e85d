"""results.json: what a study leaves for programs. Built from trial results, read back by every other command."""

from __future__ import annotations

import errno
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from typing_extensions import Self

from runners.diagnosis.records import UnitCost
from runners.parallel.records import Communication
from runners.trial import MemoryByKind, ModelInspection, TrialResult, TrialStatus, Verification
from search_spaces.policy import MAX_BLOCKS, PolicyError, RecomputePolicy, policy_from_dict, policy_to_dict
from search_spaces.yaml_words import one_line
from tuner.asked_search import check_asked_search
from tuner.objective import Objective
from tuner.pareto import Standings
from tuner.speed_ratio import Playoff
from tuner.user_error import UserError

#: How trials end that say nothing about their policy, so that it may be tried anew.
LOST_STATUSES = (TrialStatus.CANCELLED, TrialStatus.NODE_LOST)

#: Of a file; a trial with 12 regions takes less than 4,000 of them.
_MAX_FILE_BYTES = 1 << 28

StudyStatus = Literal["running", "finished", "interrupted", "failed"]


class ResultsError(UserError):
    """A results file that cannot be read; the message is one line for the user."""


#: What a file may say, so that one edited by hand is refused before it is counted with.
_Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
_Positive: TypeAlias = Annotated[int, Field(gt=0, lt=2**63)]
_Above0: TypeAlias = Annotated[float, Field(gt=0)]
_From0: TypeAlias = Annotated[float, Field(ge=0)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, protected_namespaces=(), allow_inf_nan=False)


class TrialRecord(_Record):
    """One trial in results.json: what was measured, and what the study makes of it. Absent is null."""

    number: _Count
    status: TrialStatus
    reason: str | None
    feasible: bool
    infeasible_reason: str | None
    on_front: bool
    is_best: bool
    is_baseline: bool
    policy: dict[str, Any]
    policy_key: str
    policy_summary: str
    micro_batch_size: _Positive
    gradient_accumulation_steps: _Positive
    data_parallel_degree: _Positive
    global_batch_size: _Positive
    samples_per_second: _Above0 | None
    tokens_per_second: _Above0 | None
    step_time_s: _Above0 | None
    step_time_spread_s: _From0 | None
    num_steps: _Positive | None
    relative_speed: _Above0 | None
    relative_speed_spread: _From0 | None
    reference_step_time_s: _Above0 | None
    forward_time_s: _From0 | None
    backward_time_s: _From0 | None
    recompute_time_s: float | None
    optimizer_time_s: _From0 | None
    recomputed_flops_ratio: _From0 | None
    mfu: _From0 | None = None
    hfu: _From0 | None = None
    peak_memory_bytes: _Positive | None
    peak_allocated_bytes: _Count | None
    peak_reserved_bytes: _Count | None
    memory_bytes: MemoryByKind | None
    predicted_peak_memory_bytes: _Positive | None
    predicted_step_time_s: float | None
    predicted_step_time_spread_s: _From0 | None = None
    reference_drift_ratio: _From0 | None = None
    offloaded_bytes: _Count | None = None
    compile_time_s: _From0 | None = None
    num_recompiles: _Count | None = None
    peak_rank: _Count | None = None
    stage_peak_memory_bytes: tuple[_Positive, ...] | None = None
    predicted_stage_peak_memory_bytes: tuple[_Positive, ...] | None = None
    stage_micro_batches: tuple[_Positive, ...] | None = None
    communication: Communication | None = None
    verification: Verification | None
    node: str | None
    device: str | None
    worker_pid: _Count | None
    device_probe_s: _Above0 | None = None
    started_at: str | None
    wall_time_s: _From0 | None

    @field_validator("memory_bytes")
    @classmethod
    def _limit_bytes(cls, memory: MemoryByKind | None) -> MemoryByKind | None:
        if memory is not None and any(abs(size) >= 2**63 for size in memory.model_dump().values()):
            raise ValueError("a size is larger than any memory")
        return memory

    def to_policy(self) -> RecomputePolicy:
        """The policy that was tried.

        Raises:
            PolicyError: The file was edited into something that is no policy.
        """
        return policy_from_dict(self.policy)


_FIELDS = set(TrialRecord.model_fields)


class KeepSetRecord(_Record):
    """Operators whose outputs are worth keeping, and the action of the search that asked for them."""

    asked: str
    keep: list[str]


class BlockListRecord(_Record):
    """One list of blocks in results.json."""

    path: str
    kind: str
    num_blocks: Annotated[int, Field(ge=1, le=MAX_BLOCKS)]
    units: dict[str, str]
    aliases: list[list[int]]
    segment_refusal: str | None
    keep_sets: list[KeepSetRecord] = []


class ModelRecord(_Record):
    """The model in results.json."""

    model_class: str
    num_parameters: _Count
    tokens_per_sample: _Positive | _Above0 | None
    has_own_recompute: bool
    block_lists: list[BlockListRecord]
    notes: list[str]


class StudyResults(_Record):
    """The whole of results.json."""

    schema_version: Literal[1]
    study: str
    study_id: str | None = None
    status: StudyStatus
    stop_reason: str | None
    memory_cap_bytes: _Positive
    search: dict[str, Any]
    environment: dict[str, Any]
    model: ModelRecord
    baseline: TrialRecord | None
    trials: list[TrialRecord]
    front: list[int]
    best: int | None
    playoff: Playoff | None
    unit_costs: list[UnitCost] = []

    @field_validator("search")
    @classmethod
    def _can_be_asked(cls, search: dict[str, Any]) -> dict[str, Any]:
        return check_asked_search(search)

    @field_validator("playoff")
    @classmethod
    def _have_times(cls, playoff: Playoff | None) -> Playoff | None:
        if playoff is None:
            return None
        for name, rows in (("step_times_s", playoff.step_times_s), ("processor_shares", playoff.processor_shares)):
            rounds = len(playoff.step_times_s[0]) if playoff.step_times_s else 0
            if (rows or name == "step_times_s") and len(rows) != len(playoff.trials):
                raise ValueError(f"{name} has {len(rows)} rows for {len(playoff.trials)} trials")
            if any(len(row) != rounds for row in rows):
                raise ValueError(f"{name} has rows of different lengths")
        if not all(0 < time < math.inf for row in playoff.step_times_s for time in row):
            raise ValueError("step_times_s has a time that is no positive number")
        return playoff

    @model_validator(mode="after")
    def _hold_each_trial_once(self) -> Self:
        lists = {blocks.path: blocks for blocks in self.model.block_lists}
        if len(lists) < len(self.model.block_lists):
            raise ValueError("model.block_lists: a path is there twice")
        numbers: set[int] = set()
        for index, trial in enumerate(self.trials):
            if trial.number in numbers:
                raise ValueError(f"trials.{index}.number: trial {trial.number} is there twice")
            numbers.add(trial.number)
            _check_policy(trial, lists, f"trials.{index}")
        baseline = self.baseline
        if baseline is not None and self.trial(baseline.number) != baseline:
            raise ValueError(f"baseline: it is not what trials say of trial {baseline.number}")
        return self

    @model_validator(mode="after")
    def _name_only_feasible_trials(self) -> Self:
        """What is on the front or the best is exported, so a file that was edited must not make it anything else."""
        feasible = {trial.number for trial in self.trials if trial.feasible}
        wrong = [number for number in (*self.front, self.best) if number is not None and number not in feasible]
        if wrong:
            raise ValueError(f"front and best name trial {wrong[0]}, which is not a feasible trial of this file")
        return self

    def trial(self, number: int) -> TrialRecord | None:
        # Trials stand in order of number, unless somebody has edited the file.
        index = bisect_left(self.trials, number, key=lambda trial: trial.number)
        if index < len(self.trials) and self.trials[index].number == number:
            return self.trials[index]
        return next((trial for trial in self.trials if trial.number == number), None)

    def best_trial(self) -> TrialRecord | None:
        return None if self.best is None else self.trial(self.best)

    def front_trials(self) -> list[TrialRecord]:
        """Trials of the front, the fastest first."""
        found = (self.trial(number) for number in self.front)
        return [trial for trial in found if trial is not None]

    def to_json(self) -> str:
        return self.model_dump_json(indent=1) + "\n"


def _check_policy(trial: TrialRecord, lists: Mapping[str, BlockListRecord], where: str) -> None:
    """Whether the policy is one of this model, and what stands beside it is its own.

    Raises:
        ValueError: It is not; the message begins with the field.
    """
    try:
        policy = trial.to_policy()
    except PolicyError as error:
        raise ValueError(f"{where}.policy: {error}") from error
    for name in ("micro_batch_size", "gradient_accumulation_steps", "data_parallel_degree", "global_batch_size"):
        said, own = getattr(trial, name), getattr(policy.batch, name)
        if said != own:
            raise ValueError(f"{where}.{name}: it is {said}, but {own} in the policy beside it")
    for placement in policy.placement:
        blocks = lists.get(placement.blocks)
        if blocks is None or blocks.num_blocks != placement.num_blocks:
            raise ValueError(
                f"{where}.policy: it places {placement.num_blocks} blocks of {placement.blocks}, which are not in "
                "model.block_lists"
            )
        if not placement.unit_paths.items() <= blocks.units.items():
            raise ValueError(f"{where}.policy: its units of {placement.blocks} are not those of model.block_lists")
    missing = lists.keys() - {placement.blocks for placement in policy.placement}
    if missing:
        raise ValueError(f"{where}.policy: it does not place {min(missing)} of model.block_lists")
    if policy.key != trial.policy_key:
        raise ValueError(f"{where}.policy_key: it is {trial.policy_key!r}, but that of the policy is {policy.key!r}")


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
        record = trial_record(result, self._objective, on_front=set(), best=None, baseline_key=self._baseline_key)
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


def build_results(
    *,
    study: str,
    status: StudyStatus,
    stop_reason: str | None,
    search: Mapping[str, Any],
    inspection: ModelInspection,
    environment: Mapping[str, Any],
    results: Iterable[TrialResult],
    baseline_key: str,
    objective: Objective,
    playoff: Playoff | None = None,
) -> StudyResults:
    """What `ResultsLedger` says of these results, in any order."""
    ledger = ResultsLedger(
        study=study,
        search=search,
        inspection=inspection,
        environment=environment,
        baseline_key=baseline_key,
        objective=objective,
    )
    for result in results:
        ledger.add(result)
    return ledger.results(status=status, stop_reason=stop_reason, playoff=playoff)


def trial_record(
    result: TrialResult, objective: Objective, *, on_front: set[int], best: int | None, baseline_key: str
) -> TrialRecord:
    """One trial as results.json and MLflow show it."""
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
        on_front=result.trial_number in on_front,
        is_best=result.trial_number == best,
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


def read_results(path: Path) -> StudyResults:
    """Reads results.json.

    Raises:
        ResultsError: There is none, or it is not one; the message says what to do.
    """
    try:
        return StudyResults.model_validate_json(_read_bytes(path))
    except FileNotFoundError as error:
        raise ResultsError(f"{path} does not exist; a study writes it, so name one that has run") from error
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ELOOP):
            raise ResultsError(f"{path} is not a file ({error.strerror}); name a study that has run") from error
        raise ResultsError(f"{path} cannot be read: {error.strerror}; name a file that can be read") from error
    except ValidationError as error:
        raise _not_ours(path, error) from error


def _read_bytes(path: Path) -> bytes:
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is a device, a pipe or a socket")
    with path.open("rb") as file:
        content = file.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {_MAX_FILE_BYTES} bytes, the most that is read")
    return content


def _not_ours(path: Path, error: ValidationError) -> ResultsError:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    reason = " ".join(first["msg"].removeprefix("Value error, ").split())
    # Of something missing pydantic shows what is around it, and our own sentences say what was read.
    read = "" if first["type"] in ("missing", "value_error", "json_invalid") else f", read {first['input']!r:.60}"
    text = one_line(f"{where}: {reason}{read}" if where else f"{reason}{read}")
    return ResultsError(f"{path} is not a results file of this release ({text}); run the study again")


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
            )
            for blocks in shape.block_lists
        ],
        notes=list(shape.notes),
    )
