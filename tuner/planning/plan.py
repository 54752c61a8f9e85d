"""The predicted front and what leads to it, as plain data: what `tune plan` shows, and what it writes as JSON."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, protected_namespaces=())


class PredictedMemory(_Record):
    """What memory is made of at the highest moment of a step without recompute; the parts add up to the peak.

    Attributes:
        gathered_bytes: Parameters and gradients that are whole for a moment although they are divided over ranks; None
            where nothing is divided.
        floor_bytes: The least predicted peak of any placement at this size.
        floor_policy: The one that reaches it.
    """

    micro_batch_size: int
    gradient_accumulation_steps: int
    parameters_bytes: int
    gradients_bytes: int
    optimizer_states_bytes: int
    gathered_bytes: int | None
    buffers_and_inputs_bytes: int
    activations_and_temporary_bytes: int
    predicted_peak_memory_bytes: int
    floor_bytes: int
    floor_policy: str


class PredictedUniform(_Record):
    """One action on all blocks that can take it.

    Attributes:
        action: As in a policy; segments with their size, ``segment(4)``.
    """

    action: str
    micro_batch_size: int
    gradient_accumulation_steps: int
    predicted_peak_memory_bytes: int
    predicted_to_fit: bool


class PredictedPolicy(_Record):
    """A policy with what is predicted of it.

    Attributes:
        policy: As in policy.yaml.
        predicted_flops_ratio: FLOPs of a step over those of the same step without recompute; None where they are not
            known.
        predicted_step_time_s: None without an earlier study.
        predicted_step_time_interval_s: Lower and upper end of the 90 % interval.
        predicted_tokens_per_second: None without an earlier study, and where samples are no sequences.
        predicted_samples_per_second: None without an earlier study.
    """

    policy: dict[str, Any]
    policy_key: str
    policy_summary: str
    micro_batch_size: int
    gradient_accumulation_steps: int
    predicted_peak_memory_bytes: int
    predicted_flops_ratio: float | None
    predicted_step_time_s: float | None
    predicted_step_time_interval_s: tuple[float, float] | None
    predicted_tokens_per_second: float | None
    predicted_samples_per_second: float | None


class LargestMicroBatch(_Record):
    """Attributes:
    action: As in `PredictedUniform`, or ``any mixture``.
    micro_batch_size: None where none is predicted to fit.
    """

    action: str
    micro_batch_size: int | None


class StudyUsed(_Record):
    """The earlier study that times come from.

    Attributes:
        num_trials: Of that study, those that say something of this search.
        device: It ran on.
        measured_peak_ratios: Least, median and largest of measured over predicted peak in that study; None where none
            can be compared.
    """

    study: str
    device: str | None
    num_trials: int
    measured_peak_ratios: tuple[float, float, float] | None


class PlannedModel(_Record):
    """Attributes:
    block_lists: One line each.
    """

    model_class: str
    num_parameters: int
    block_lists: tuple[str, ...]


class Plan(_Record):
    """The whole answer. Every figure but the cap is predicted.

    Attributes:
        device_memory_bytes: None where the cap is in bytes and no device was named.
        num_shards: Ranks that share parameters, gradients and optimizer states; all figures are those of one rank.
        peaks_from: ``stretches``: added up from traced stretches, for every placement; ``dry runs``: one dry run per
            placement, for those that are listed.
        max_relative_error: The largest difference between added-up peaks and dry runs of their own that was seen.
        time_unit: ``seconds`` or ``plain step FLOPs``; None where times are not predicted at all.
        memory: By micro-batch size, largest first; empty where peaks come from dry runs of policies.
        cheapest: The policy of least predicted time under the cap at each micro-batch size where one fits.
        best: The cheapest of all; None where nothing is predicted to fit.
        front: Policies that no other one beats in peak and time at once, the largest peak first. With times in FLOPs
            only policies at the same or a larger micro-batch size count as beating one.
        num_front: Of the whole front, of which ``front`` may be a selection.
        notes: What a reader must know of these figures, one sentence each.
    """

    schema_version: Literal[1] = 1
    study: str
    model: PlannedModel
    memory_cap_bytes: int
    device_memory_bytes: int | None
    num_shards: int
    global_batch_size: int
    peaks_from: Literal["stretches", "dry runs"]
    max_relative_error: float | None
    time_unit: Literal["seconds", "plain step FLOPs"] | None
    times_from: StudyUsed | None
    memory: tuple[PredictedMemory, ...]
    uniform: tuple[PredictedUniform, ...]
    largest_micro_batch: tuple[LargestMicroBatch, ...]
    cheapest: tuple[PredictedPolicy, ...]
    best: PredictedPolicy | None
    front: tuple[PredictedPolicy, ...]
    num_front: int
    notes: tuple[str, ...]

    @property
    def anything_fits(self) -> bool:
        return any(largest.micro_batch_size is not None for largest in self.largest_micro_batch)

    def to_json(self) -> str:
        return self.model_dump_json(indent=1) + "\n"
