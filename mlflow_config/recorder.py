"""Keeps a study in MLflow: one run for the study, one nested run for each trial, addressed by explicit ids."""

from __future__ import annotations

import enum
import getpass
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mlflow_config import names
from mlflow_config.entries import ParamValue, TagValue, entries
from mlflow_config.errors import TrackingError
from mlflow_config.settings import TrackingSettings
from mlflow_config.store import NOTE_TAG, PARENT_RUN_TAG, TABLES_TAG, TrackingStore
from mlflow_config.stored_run import RUNNING, StoredRun
from mlflow_config.views import view_tags

_EXPERIMENT_NOTE = """\
Each run is one study, the runs nested in it are its trials. Open "Views" for all trials or the Pareto front, or search:

- on the Pareto front of speed and peak memory: `tags.on_front = 'true'`
- within the memory cap and proven to train the same model: `tags.feasible = 'true'`
- the winner of each study: `tags.is_best = 'true'`
"""
#: The kind makes MLflow show its pages for training rather than those for chat models.
_EXPERIMENT_TAGS = {NOTE_TAG: _EXPERIMENT_NOTE, "mlflow.experimentKind": "custom_model_development"}
#: Tags that move while a study goes on.
_CHANGING_TAGS = (names.FEASIBLE, names.ON_FRONT, names.IS_BEST)
_NOTHING: frozenset[str] = frozenset()


class RunOutcome(str, enum.Enum):
    """How a run ended, in MLflow's words.

    Life of a trial's run::

        RUNNING -> FINISHED  it has an answer, within the memory cap or not
                -> FAILED    it could not run, or took too long
                -> KILLED    stopped from outside; it may be recorded anew and then ends as above
    """

    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"


class StudyRecorder:
    """Records one study. Only the driver uses it, one call at a time.

    Every method but the constructor raises ``TrackingError`` where the store is in trouble. Nothing is half done by
    that: the same call made again later completes it, and what is complete already is left as it is.
    """

    def __init__(self, settings: TrackingSettings, *, study: str, study_id: str, patience_s: float = 60.0) -> None:
        """
        Args:
            study: Name of the study, for people.
            study_id: What tells this study from every other one in the store; a resumed study has the same one.
            patience_s: How long one call waits for a store that is locked.
        """
        self._settings = settings
        self._study = study
        self._study_id = study_id
        self._store = TrackingStore(settings, patience_s=patience_s)
        self._experiment_id: str | None = None
        self._parent: StoredRun | None = None
        #: The run of each trial; None until read, and again after a creation of which the outcome is unknown.
        self._trials: dict[int, StoredRun] | None = None
        self._recorded: set[int] = set()

    def load(self) -> None:
        """Imports MLflow, which must not be cut short by a signal."""
        self._store.load()

    def open(self) -> None:
        """Connects and finds the study's run, or creates it. A study that had ended is running again."""
        self._store.open()
        self._experiment_id = self._store.find_or_create_experiment(
            self._settings.experiment, tags={**_EXPERIMENT_TAGS, **view_tags(_now_ms())}
        )
        found = self._store.find_runs(self._experiment_id, names.STUDY_ID, self._study_id)
        if not found:
            self._parent = self._store.create_run(
                self._experiment_id, self._study, tags=self._parent_tags(), start_time_ms=_now_ms()
            )
            self._trials = {}
            return
        self._parent = found[0]
        if self._parent.status != RUNNING:
            self._store.set_status(self._parent, RUNNING)

    @property
    def experiment_id(self) -> str:
        """MLflow's id of the experiment; known once opened."""
        if self._experiment_id is None:
            raise TrackingError("the recorder is not open; open it before recording")
        return self._experiment_id

    @property
    def run_id(self) -> str:
        """MLflow's id of the study's run; known once opened."""
        return self._study_run.run_id

    def is_recorded(self, trial_number: int) -> bool:
        """True where the trial's run is complete; all others can still be recorded."""
        self._trial_runs()
        return trial_number in self._recorded

    def start_trial(self, trial_number: int, *, name: str, started_at_s: float | None = None) -> None:
        """Shows the trial as running. Optional: a trial that was not started is recorded all the same.

        Args:
            name: What the run is called on MLflow's page, for example the number and the policy's summary.
            started_at_s: Seconds since the Unix epoch; None is now.
        """
        run = self._trial_runs().get(trial_number)
        if run is None:
            started_at_ms = _now_ms() if started_at_s is None else _ms(started_at_s)
            self._create_trial_run(trial_number, name=name, tags={}, start_time_ms=started_at_ms)
        elif trial_number not in self._recorded:
            self._store.set_status(run, RUNNING)

    def record_trial(
        self,
        trial_number: int,
        *,
        outcome: RunOutcome,
        name: str,
        params: Mapping[str, ParamValue],
        metrics: Mapping[str, float | None],
        tags: Mapping[str, TagValue],
        texts: Mapping[str, str] | None = None,
        started_at_s: float | None = None,
        ended_at_s: float | None = None,
    ) -> None:
        """Writes a trial that ended. Recording a trial again changes nothing, unless it was KILLED before.

        Args:
            name: As in ``start_trial``.
            metrics: None is left out.
            texts: Path inside the run's artifacts to the text of the file.
            started_at_s: Seconds since the Unix epoch; None where the trial was started here, or just now.
            ended_at_s: Seconds since the Unix epoch; None is now.
        """
        run = self._trial_runs().get(trial_number)
        if trial_number in self._recorded:
            return
        made = entries(params=params, metrics=metrics, tags=tags)
        made.texts.update(texts or {})
        ended_at_ms = _now_ms() if ended_at_s is None else _ms(ended_at_s)
        if run is None:
            started_at_ms = ended_at_ms if started_at_s is None else _ms(started_at_s)
            run = self._create_trial_run(trial_number, name=name, tags=made.tags, start_time_ms=started_at_ms)
            made.tags = {}
        made.params = {key: value for key, value in made.params.items() if key not in run.param_names}
        self._store.write(run, made)
        self._store.set_status(run, outcome.value, end_time_ms=max(ended_at_ms, run.start_time_ms))
        run = replace(run, param_names=run.param_names | made.params.keys(), tags={**run.tags, **made.tags})
        is_recorded = outcome is not RunOutcome.KILLED
        self._trial_runs()[trial_number] = _remembered(run, is_recorded=is_recorded)
        if is_recorded:
            self._recorded.add(trial_number)

    def update_trial_tags(self, trial_number: int, tags: Mapping[str, TagValue]) -> None:
        """Sets tags of a trial, for example when the front moved. Tags that are so already cost nothing."""
        run = self._trial_runs().get(trial_number)
        if run is None:
            raise TrackingError(f"trial {trial_number} of {self._study} has no run to tag; record the trial first")
        made = entries(tags=tags)
        made.tags = {name: value for name, value in made.tags.items() if run.tags.get(name) != value}
        if made.tags:
            self._store.write(run, made)
            self._trial_runs()[trial_number] = replace(run, tags={**run.tags, **made.tags})

    def close_stale_runs(self, reason: str) -> tuple[int, ...]:
        """Ends every trial's run that is still RUNNING, as KILLED with the reason, and answers their numbers.

        Called on resume, when no other driver of this study is alive, and by ``finish``.
        """
        closed = []
        for trial_number, run in self._read_trial_runs(status=RUNNING):
            tags = entries(tags={names.STATUS: names.STATUS_CANCELLED, names.REASON: reason})
            self._store.write(run, tags)
            self._store.set_status(run, RunOutcome.KILLED.value, end_time_ms=max(_now_ms(), run.start_time_ms))
            closed.append(trial_number)
        return tuple(closed)

    def record_study(
        self,
        *,
        params: Mapping[str, ParamValue] | None = None,
        metrics: Mapping[str, float | None] | None = None,
        tags: Mapping[str, TagValue] | None = None,
        texts: Mapping[str, str] | None = None,
    ) -> None:
        """Writes to the study's own run. Parameters that it has already stay; a text replaces one of the same path."""
        run = self._study_run
        made = entries(params=params, metrics=metrics, tags=tags)
        made.texts.update(texts or {})
        made.params = {name: value for name, value in made.params.items() if name not in run.param_names}
        self._store.write(run, made)
        self._parent = replace(run, param_names=run.param_names | made.params.keys(), tags={**run.tags, **made.tags})

    def record_table(self, path: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Writes a table that MLflow's page shows as one and ``MlflowClient.load_table`` reads; replaces the last one.

        Args:
            path: Name of the artifact; ends in ``.json``.
            rows: Cells of JSON's own types, in the order of ``columns``.
        """
        # `MlflowClient.log_table` appends to a table that is there, so that a resumed study would list trials twice.
        text = json.dumps({"columns": list(columns), "data": [list(row) for row in rows]}, allow_nan=False)
        tables = json.loads(self._study_run.tags.get(TABLES_TAG, "[]"))
        table = {"path": path, "type": "table"}
        if table not in tables:
            tables.append(table)
        self.record_study(tags={TABLES_TAG: json.dumps(tables)}, texts={path: text})

    def describe_study(self, markdown: str) -> None:
        """Sets what MLflow shows on top of the study's run."""
        # The page takes a word like `@2x4` for somebody's name on GitHub, unless it is escaped.
        self.record_study(tags={NOTE_TAG: re.sub(r"(^|\s)@", r"\1\\@", markdown)})

    def finish(self, outcome: RunOutcome) -> None:
        """Ends the study's run; a trial that is still running is ended too. Recording may go on afterwards."""
        self.close_stale_runs("the study ended before this trial did")
        # A clock that was set back meanwhile must not make the run end before it began.
        ended_at_ms = max(_now_ms(), self._study_run.start_time_ms)
        self._store.set_status(self._study_run, outcome.value, end_time_ms=ended_at_ms)

    def close(self) -> None:
        """Lets go of the store; may be called twice, and without having opened."""
        self._store.close()

    @property
    def _study_run(self) -> StoredRun:
        if self._parent is None:
            raise TrackingError("the recorder is not open; open it before recording")
        return self._parent

    def _parent_tags(self) -> dict[str, str]:
        tags = {
            names.STUDY: self._study,
            names.STUDY_ID: self._study_id,
            "mlflow.user": _user_name(),
            "mlflow.source.name": "tune run",
            "mlflow.source.type": "LOCAL",
        }
        return entries(tags=tags).tags

    def _create_trial_run(
        self, trial_number: int, *, name: str, tags: Mapping[str, str], start_time_ms: int
    ) -> StoredRun:
        own = {PARENT_RUN_TAG: self.run_id, names.STUDY: self._study, names.TRIAL_NUMBER: str(trial_number)}
        trials = self._trial_runs()
        try:
            run = self._store.create_run(self.experiment_id, name, tags={**tags, **own}, start_time_ms=start_time_ms)
        except TrackingError:
            self._trials = None
            raise
        trials[trial_number] = run
        return run

    def _trial_runs(self) -> dict[int, StoredRun]:
        if self._trials is None:
            trials: dict[int, StoredRun] = {}
            recorded = set()
            for trial_number, run in self._read_trial_runs():
                is_recorded = run.status in (RunOutcome.FINISHED.value, RunOutcome.FAILED.value)
                if trial_number not in trials or is_recorded:
                    trials[trial_number] = _remembered(run, is_recorded=is_recorded)
                if is_recorded:
                    recorded.add(trial_number)
            self._trials, self._recorded = trials, recorded
        return self._trials

    def _read_trial_runs(self, *, status: str | None = None) -> list[tuple[int, StoredRun]]:
        runs = self._store.find_runs(self.experiment_id, PARENT_RUN_TAG, self.run_id, status=status)
        numbered = [(run.tags.get(names.TRIAL_NUMBER, ""), run) for run in runs]
        return [(int(number), run) for number, run in numbered if number.isdecimal()]


def _remembered(run: StoredRun, *, is_recorded: bool) -> StoredRun:
    """What an update must know of a run, so that memory stays small over thousands of trials."""
    tags = {name: value for name, value in run.tags.items() if name in _CHANGING_TAGS}
    return replace(run, tags=tags, param_names=_NOTHING if is_recorded else run.param_names)


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry in the system's list of users
        return "unknown"


def _now_ms() -> int:
    return _ms(time.time())


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
