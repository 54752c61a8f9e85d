"""What a study tells MLflow. Trouble with the store is said and never costs a finished trial."""

from __future__ import annotations

import datetime
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import compress
from operator import not_

from mlflow_config import names
from mlflow_config.errors import TrackingError
from mlflow_config.recorder import RunOutcome, StudyRecorder
from runners.parallel.records import Communication
from runners.trial import TrialStatus
from search_spaces.actions import shown_action
from search_spaces.yaml_text import dump_yaml
from tuner.prediction_errors import peak_error, step_time_error
from tuner.results import StudyResults, TrialRecord

logger = logging.getLogger(__name__)

#: Share of the time that a store in trouble may cost.
_TRYING_SHARE = 0.1
#: Seconds from one writing of the whole results to the next; each grows with the study.
_KEEP_RESULTS_EVERY_S = 30.0
_FAILURES = (TrialStatus.FAILED, TrialStatus.TIMED_OUT, TrialStatus.NODE_LOST)
_METRICS = (
    names.SAMPLES_PER_SECOND,
    names.TOKENS_PER_SECOND,
    names.STEP_TIME_S,
    names.STEP_TIME_SPREAD_S,
    names.NUM_STEPS,
    names.RELATIVE_SPEED,
    names.RELATIVE_SPEED_SPREAD,
    names.REFERENCE_STEP_TIME_S,
    names.REFERENCE_DRIFT_RATIO,
    names.FORWARD_TIME_S,
    names.BACKWARD_TIME_S,
    names.RECOMPUTE_TIME_S,
    names.OPTIMIZER_TIME_S,
    names.RECOMPUTED_FLOPS_RATIO,
    names.OFFLOADED_BYTES,
    names.COMPILE_TIME_S,
    names.NUM_RECOMPILES,
    names.MFU,
    names.HFU,
    names.PEAK_MEMORY_BYTES,
    names.PEAK_ALLOCATED_BYTES,
    names.PEAK_RESERVED_BYTES,
    names.PREDICTED_PEAK_MEMORY_BYTES,
    names.PREDICTED_STEP_TIME_S,
    names.PREDICTED_STEP_TIME_SPREAD_S,
    names.DEVICE_PROBE_S,
    names.WALL_TIME_S,
)


@dataclass(frozen=True)
class BegunTrial:
    """A trial that runs and is not shown yet, with the moment it began, in seconds since the Unix epoch."""

    number: int
    name: str
    started_at_s: float


class StudyRecording:
    """Shows a study in MLflow; each call waits until that is done, or cannot be done now.

    A store that does not answer is said once. Everything is tried again later, the opening too; the longer a try takes,
    the longer until the next one.

    Args:
        params: Of the study's own run.
        texts: Path inside the artifacts of the study's own run to the text of the file.
    """

    def __init__(
        self,
        recorder: StudyRecorder,
        *,
        params: Mapping[str, str | int | float | bool],
        texts: Mapping[str, str],
    ) -> None:
        self._recorder = recorder
        self._params = params
        self._texts = texts
        self._details: dict[int, str] = {}
        #: Trials that were stopped from outside; the recorder would write them anew each time.
        self._recorded_as_stopped: set[int] = set()
        #: What MLflow shows; a record that is the same object still is shown already.
        self._shown: set[int] = set()
        self._shown_by_number: dict[int, TrialRecord] = {}
        self._is_open = False
        self._is_in_trouble = False
        self._next_try_at = 0.0
        self._keep_results_at = 0.0

    def open(self) -> None:
        """Finds or begins the study's own run, and ends the runs that a dead driver left."""
        self._try(lambda: None)

    def add_detail(self, trial_number: int, detail: str) -> None:
        """The long form of a trial's reason, to be recorded with it."""
        self._details[trial_number] = detail

    def record(self, begun: deque[BegunTrial], results: StudyResults | None) -> None:
        """Shows the trials that began, which are taken out of the queue, and those that ended.

        Args:
            results: The study as it stood when the newest trial ended; not changed later. None before one has.
        """

        def record_news() -> None:
            # Those that begin meanwhile come next time: a slow store must not put off the results for ever.
            for _ in range(len(begun)):
                trial = begun.popleft()
                self._recorder.start_trial(trial.number, name=trial.name, started_at_s=trial.started_at_s)
            if results is not None:
                self._record_all(results)
                self._keep_results(results)

        self._try(record_news)

    def complete(self, results: StudyResults, *, texts: Mapping[str, str], markdown: str) -> None:
        """Completes the study's own run: its files, its table and the sentence on top. To be called last."""

        def record_end() -> None:
            self._record_all(results)
            best = results.best
            self._recorder.record_study(
                metrics={
                    names.NUM_TRIALS: len(results.trials),
                    names.NUM_FEASIBLE_TRIALS: sum(trial.feasible for trial in results.trials),
                    names.NUM_FRONT_TRIALS: len(results.front),
                },
                tags={
                    names.STATUS: results.status,
                    names.STOP_REASON: results.stop_reason or "",
                    names.BEST_TRIAL: "none" if best is None else str(best),
                },
                texts=texts,
            )
            self._recorder.record_table(names.TRIALS_FILE, _TABLE_COLUMNS, [_table_row(t) for t in results.trials])
            self._recorder.describe_study(markdown)
            outcomes = {"finished": RunOutcome.FINISHED, "failed": RunOutcome.FAILED}
            self._recorder.finish(outcomes.get(results.status, RunOutcome.KILLED))

        self._try(record_end, is_last=True)

    def _keep_results(self, results: StudyResults) -> None:
        """Now and then, so that other machines can show a study that is running."""
        if time.monotonic() >= self._keep_results_at:
            self._recorder.record_study(texts={names.RESULTS_FILE: results.to_json()})
            self._keep_results_at = time.monotonic() + _KEEP_RESULTS_EVERY_S

    def _record_all(self, results: StudyResults) -> None:
        """Records every trial that is not recorded yet and moves the tags that depend on the others."""
        for trial in self._changed(results):
            if trial.number not in self._recorded_as_stopped and not self._recorder.is_recorded(trial.number):
                self._record(trial)
            self._recorder.update_trial_tags(trial.number, _moving_tags(trial))
            self._show(trial)

    def _changed(self, results: StudyResults) -> list[TrialRecord]:
        """Records that MLflow does not show yet; asked for as trials end, of thousands."""
        trials = results.trials
        return list(compress(trials, map(not_, map(self._shown.__contains__, map(id, trials)))))

    def _show(self, trial: TrialRecord) -> None:
        before = self._shown_by_number.get(trial.number)
        self._shown_by_number[trial.number] = trial
        self._shown.discard(id(before))
        self._shown.add(id(trial))

    def _record(self, trial: TrialRecord) -> None:
        data = trial.model_dump(mode="json")
        memory, proof = trial.memory_bytes, trial.verification
        metrics = {name: data[name] for name in _METRICS}
        metrics[names.PREDICTED_PEAK_MEMORY_RELATIVE_ERROR] = peak_error(trial)
        metrics[names.PREDICTED_STEP_TIME_RELATIVE_ERROR] = step_time_error(trial)
        if memory is not None:
            metrics |= {f"{names.MEMORY_BYTES}.{kind}": float(size) for kind, size in memory.model_dump().items()}
        if trial.communication is not None:
            metrics |= _communication_metrics(trial.communication)
        for stage, peak in enumerate(trial.stage_peak_memory_bytes or ()):
            metrics[f"{names.STAGE_PEAK_MEMORY_BYTES}.{stage}"] = float(peak)
        if proof is not None:
            metrics[names.VERIFICATION_MAX_RELATIVE_ERROR] = proof.max_relative_error
            metrics[names.VERIFICATION_TOLERANCE] = proof.tolerance
            metrics[names.VERIFICATION_NUM_STEPS] = proof.num_steps
        texts = {names.POLICY_FILE: dump_yaml(trial.policy)}
        if trial.number in self._details:
            texts[names.DETAIL_FILE] = self._details[trial.number]
        started_at_s = _seconds(trial.started_at)
        self._recorder.record_trial(
            trial.number,
            outcome=_outcome(trial.status),
            name=f"{trial.number}: {trial.policy_summary}",
            params=_params(trial),
            metrics=metrics,
            tags={**_fixed_tags(trial), **_moving_tags(trial)},
            texts=texts,
            started_at_s=started_at_s,
            ended_at_s=None if started_at_s is None else started_at_s + (trial.wall_time_s or 0.0),
        )
        self._details.pop(trial.number, None)
        if trial.status is TrialStatus.CANCELLED:
            self._recorded_as_stopped.add(trial.number)

    def _try(self, record: Callable[[], object], *, is_last: bool = False) -> None:
        start = time.monotonic()
        if start < self._next_try_at and not is_last:
            return
        try:
            self._open_recorder()
            record()
        except TrackingError as error:
            if not self._is_in_trouble:
                logger.warning("MLflow: %s; the search goes on and records again later", error)
            self._is_in_trouble = True
            end = time.monotonic()
            self._next_try_at = end + (end - start) / _TRYING_SHARE
            return
        if self._is_in_trouble:
            logger.warning("MLflow: recording works again")
        self._is_in_trouble = False

    def _open_recorder(self) -> None:
        if self._is_open:
            return
        self._recorder.open()
        self._recorder.close_stale_runs("interrupted: the process that ran the study ended")
        self._recorder.record_study(params=self._params, texts=self._texts)
        self._is_open = True


_TABLE_COLUMNS = (
    "trial",
    "policy",
    "status",
    "verdict",
    "feasible",
    "on_front",
    "is_best",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "samples_per_second",
    "tokens_per_second",
    "relative_speed",
    "peak_memory_bytes",
    "predicted_peak_memory_bytes",
    "step_time_s",
    "predicted_step_time_s",
    "reason",
)


def _table_row(trial: TrialRecord) -> list[object]:
    return [
        trial.number,
        trial.policy_summary,
        trial.status.value,
        trial.verification.verdict.value if trial.verification is not None else None,
        trial.feasible,
        trial.on_front,
        trial.is_best,
        trial.micro_batch_size,
        trial.gradient_accumulation_steps,
        trial.samples_per_second,
        trial.tokens_per_second,
        trial.relative_speed,
        trial.peak_memory_bytes,
        trial.predicted_peak_memory_bytes,
        trial.step_time_s,
        trial.predicted_step_time_s,
        trial.reason or trial.infeasible_reason,
    ]


def _communication_metrics(communication: Communication) -> dict[str, float | None]:
    """Calls and bytes of each kind of collective, named as in results.json."""
    return {
        f"{names.COMMUNICATION}.{kind}.{figure}": value
        for kind, figures in communication.model_dump(exclude={"gradient_reductions"}).items()
        for figure, value in figures.items()
    }


def _params(trial: TrialRecord) -> dict[str, str | int | float | bool]:
    policy = trial.to_policy()
    params: dict[str, str | int | float | bool] = {
        names.POLICY_KEY: trial.policy_key,
        names.POLICY_SUMMARY: trial.policy_summary,
        names.MICRO_BATCH_SIZE: trial.micro_batch_size,
        names.GRADIENT_ACCUMULATION_STEPS: trial.gradient_accumulation_steps,
        names.DATA_PARALLEL_DEGREE: trial.data_parallel_degree,
        names.GLOBAL_BATCH_SIZE: trial.global_batch_size,
        names.PRESERVE_RNG_STATE: policy.preserve_rng_state,
    }
    if policy.reshard_after_forward is not None:
        params[names.RESHARD_AFTER_FORWARD] = policy.reshard_after_forward
    if policy.compile_memory_budget is not None:
        params[names.COMPILE_MEMORY_BUDGET] = policy.compile_memory_budget
    for placement in policy.placement:
        actions = ", ".join(f"{r.first}-{r.last}: {shown_action(r.action)}" for r in placement.regions)
        params[names.placement_param(placement.blocks)] = actions or "none"
    return params


def _fixed_tags(trial: TrialRecord) -> dict[str, str]:
    tags: dict[str, str | None] = {
        names.STATUS: trial.status.value,
        names.REASON: trial.reason,
        names.NODE: trial.node,
        names.DEVICE: trial.device,
    }
    if trial.verification is not None:
        tags[names.VERDICT] = trial.verification.verdict.value
        tags[names.VERIFICATION_REASON] = trial.verification.reason
        tags[names.VERIFICATION_REFERENCE] = trial.verification.reference
        tags[names.VERIFICATION_WORST_TENSOR] = trial.verification.worst_tensor
    return {name: value for name, value in tags.items() if value is not None}


def _moving_tags(trial: TrialRecord) -> dict[str, bool]:
    return {names.FEASIBLE: trial.feasible, names.ON_FRONT: trial.on_front, names.IS_BEST: trial.is_best}


def _outcome(status: TrialStatus) -> RunOutcome:
    if status is TrialStatus.CANCELLED:
        return RunOutcome.KILLED
    return RunOutcome.FAILED if status in _FAILURES else RunOutcome.FINISHED


def _seconds(started_at: str | None) -> float | None:
    return None if started_at is None else datetime.datetime.fromisoformat(started_at).timestamp()
