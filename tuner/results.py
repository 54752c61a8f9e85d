"""results.json: what a study leaves for programs. Built from trial results, read back by every other command."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from typing_extensions import Self

from runners.diagnosis.records import UnitCost
from runners.parallel.records import Communication
from runners.trial import MemoryByKind, TrialStatus, Verification
from search_spaces.policy import MAX_BLOCKS, PolicyError, RecomputePolicy
from search_spaces.policy_reader import policy_from_dict
from tuner.asked_search import check_asked_search
from tuner.speed_ratio import Playoff

#: How trials end that say nothing about their policy, so that it may be tried anew.
LOST_STATUSES = (TrialStatus.CANCELLED, TrialStatus.NODE_LOST)

StudyStatus = Literal["running", "finished", "interrupted", "failed"]


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
    keeps_statistics: bool = False


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
