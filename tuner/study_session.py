"""One session of `tune run`: from a checked search file to a finished, interrupted or failed study."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import yaml

from mlflow_config import names
from mlflow_config.errors import TrackingError
from mlflow_config.recorder import StudyRecorder
from mlflow_config.settings import ignored_environment
from runners.base import TrialRunner
from runners.trial import ModelInspection, TrialResult
from search_spaces.ablation import plain_policies
from search_spaces.registry import make_space
from tuner import assemble
from tuner.config import SearchConfig
from tuner.config_file import resolved_yaml
from tuner.export.policy import PolicyExporter
from tuner.memory_size import describe_bytes
from tuner.objective import Objective, Score
from tuner.playoff import playoff_entrants, run_playoff
from tuner.recording import MlflowListener
from tuner.report import front_html, report_html
from tuner.results import StudyResults, StudyStatus, build_results
from tuner.sampling.policy_study import PolicyStudy, open_policy_study
from tuner.sampling.registry import make_sampler
from tuner.search import Search, SearchListener
from tuner.speed_ratio import Playoff
from tuner.study_folder import StudyFolder
from tuner.study_record import changes, goal_of
from tuner.summary import StudySummary, summarize
from tuner.user_error import UserError

logger = logging.getLogger(__name__)

#: How a policy is spelled as parameters; the other encoding is for spaces that the user spells block by block.
_ENCODING = "two_action"
#: Seconds between two writings of results.json while trials come in quickly.
_WRITE_INTERVAL_S = 2.0
_GOAL, _ELAPSED, _PLAYOFF = "goal", "elapsed_s", "playoff"


class StudyExistsError(UserError):
    """A study of this name is there and this run must not touch it; the message is one line for the user."""


class StudyChangedError(UserError):
    """The search file no longer describes the study to be resumed; the lines say what changed."""


class Progress(SearchListener, AbstractContextManager["Progress"], Protocol):
    """What shows a search while it runs."""


#: Makes the view of a search from ways to read its results and its elapsed seconds.
ProgressMaker = Callable[[Callable[[], StudyResults], Callable[[], float]], Progress]


@dataclass(frozen=True)
class Outcome:
    """How the session ended."""

    results: StudyResults
    summary: StudySummary
    folder: StudyFolder


def run_study(config: SearchConfig, runner: TrialRunner, *, resume: bool, make_progress: ProgressMaker) -> Outcome:
    """Searches until a rule says stop or the user interrupts; whatever was measured is kept either way.

    Raises:
        StudyExistsError: There is such a study already, or there is none to resume.
        StudyBusyError: Another driver runs it.
        StudyChangedError: On resume: another space, cap, model or goal.
        GoalError: The cap is no cap on this device.
        RunnerError: Trials cannot run, or the model cannot be built as named.
    """
    folder = StudyFolder(assemble.output_dir(config), config.study)
    if folder.exists() and not resume:
        raise StudyExistsError(
            f"study {config.study} is in {folder.path} already; continue it with --resume, or give this search another "
            "name with `study:`"
        )
    if resume and not folder.exists():
        raise StudyExistsError(
            f"there is no study {config.study} in {folder.path.parent} to resume; run without --resume"
        )
    # The model and the cluster are tried before anything is written: a refused search leaves no folder behind.
    logger.info("%s", runner.describe())
    inspection = runner.inspect(assemble.inspection_spec(config))
    with folder.locked():
        session = _Session(config, runner, folder, inspection)
        return session.run(make_progress)


class _Session:
    def __init__(
        self, config: SearchConfig, runner: TrialRunner, folder: StudyFolder, inspection: ModelInspection
    ) -> None:
        self._config = config
        self._runner = runner
        self._folder = folder
        self._inspection = inspection
        cap_bytes = assemble.memory_cap_bytes(config, inspection)
        self._choices = assemble.search_choices(config, inspection)
        self._reference = assemble.reference_policy(self._choices, inspection)
        self._objective: Objective = assemble.objective_for(config, cap_bytes, self._reference)
        self._plan = plain_policies(self._choices)
        self._resolved = resolved_yaml(config, credentials="hidden")
        self._search_data: dict[str, Any] = yaml.safe_load(self._resolved)
        self._status: StudyStatus = "running"
        self._stop_reason: str | None = None
        self._results: dict[int, TrialResult] = {}
        self._written_at = 0.0
        self._playoff: Playoff | None = None

    def run(self, make_progress: ProgressMaker) -> Outcome:
        study = self._open_study()
        for result in study.results():
            self._results[result.trial_number] = result
        self._log_plan()
        for policy in self._plan:
            study.enqueue(policy)
        self._folder.write(self._folder.search_file, resolved_yaml(self._config, credentials="hidden"))
        recorder = self._open_recorder(study)
        mlflow = MlflowListener(recorder, self.results)
        search: Search | None = None
        progress = make_progress(self.results, lambda: 0.0 if search is None else search.elapsed_s)
        search = Search(
            study,
            self._runner,
            objective=self._objective,
            rules=assemble.stop_rules(self._config),
            make_spec=assemble.spec_maker(
                self._config,
                cap_bytes=self._objective.memory_cap_bytes,
                reference=self._reference,
            ),
            listeners=[self, mlflow, progress],
            baseline_key=self._plan[0].key,
            previous=list(self._results.values()),
            previous_elapsed_s=float(study.attribute(_ELAPSED) or 0.0),
        )
        try:
            with progress, _interruptible():
                reason = search.run()
                if not reason.is_failure:
                    self._run_playoff(study)
            self._status = "failed" if reason.is_failure else "finished"
            self._stop_reason = reason.message
        except KeyboardInterrupt:
            self._status, self._stop_reason = "interrupted", "interrupted by the user"
        except BaseException:
            self._status, self._stop_reason = "failed", "the search itself failed; its log says why"
            raise
        finally:
            with _uninterrupted():
                search.cancel()
                study.set_attribute(_ELAPSED, search.elapsed_s)
                summary = self._finish(mlflow)
                recorder.close()
        return Outcome(self.results(), summary, self._folder)

    def results(self) -> StudyResults:
        """The study as it stands."""
        return build_results(
            study=self._config.study,
            status=self._status,
            stop_reason=self._stop_reason,
            search=self._search_data,
            inspection=self._inspection,
            environment=self._inspection.environment,
            results=list(self._results.values()),
            baseline_key=self._plan[0].key,
            objective=self._objective,
            playoff=self._playoff,
        )

    def started(self, trial_number: int, policy: object) -> None:
        """Nothing is kept of a trial before it has ended."""

    def finished(self, result: TrialResult, score: Score) -> None:
        self._results[result.trial_number] = result
        if result.detail is not None:
            self._folder.append_log(f"trial {result.trial_number}: {result.reason}\n{result.detail}\n")
        if time.monotonic() - self._written_at > _WRITE_INTERVAL_S:
            self._folder.write(self._folder.results_file, self.results().to_json())
            self._written_at = time.monotonic()

    def _open_study(self) -> PolicyStudy:
        space = make_space(_ENCODING, self._choices)
        sampler = make_sampler(self._config.search.sampler, space, seed=self._config.search.seed)
        storage = self._config.storage or f"sqlite:///{self._folder.database.resolve()}"
        study = open_policy_study(self._config.study, space=space, sampler=sampler, storage=storage)
        goal = goal_of(self._search_data)
        known = study.attribute(_GOAL)
        if known is None:
            study.set_attribute(_GOAL, goal)
        else:
            self._refuse_changes(known, goal)
        for interrupted in study.close_interrupted(self._objective.score):
            study.enqueue(interrupted.policy)
        return study

    def _refuse_changes(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        changed = list(changes(before, now))
        if changed:
            raise StudyChangedError(
                [
                    f"study {self._config.study} cannot be resumed: its search file has changed. Undo the change, or "
                    "give the new search another name with `study:`",
                    *(f"  {line}" for line in changed),
                ]
            )

    def _open_recorder(self, study: PolicyStudy) -> StudyRecorder:
        settings = assemble.tracking(self._config)
        ignored = ignored_environment(settings)
        if ignored is not None:
            logger.warning("%s", ignored)
        recorder = StudyRecorder(settings, study=self._config.study, study_id=study.unique_id())
        try:
            recorder.open()
            recorder.close_stale_runs("interrupted: the process that ran the study ended")
            recorder.record_study(
                params={
                    names.MODEL: self._config.model.factory,
                    names.GLOBAL_BATCH_SIZE: self._config.batch.global_batch_size,
                    names.MEMORY_CAP_BYTES: self._objective.memory_cap_bytes,
                    names.SAMPLER: self._config.search.sampler,
                    names.SEED: self._config.search.seed,
                },
                texts={
                    names.SEARCH_FILE: self._resolved,
                    names.INSPECTION_FILE: self._inspection.model_dump_json(indent=1),
                },
            )
        except TrackingError as error:
            logger.warning("MLflow: %s; the search goes on and records again later", error)
        return recorder

    def _run_playoff(self, study: PolicyStudy) -> None:
        """Times the closest trials again, in turn; a resumed study that learned nothing new keeps its playoff."""
        entrants = playoff_entrants(list(self._results.values()), self._objective)
        numbers = tuple(result.trial_number for result in entrants)
        known = study.attribute(_PLAYOFF)
        if known is not None and tuple(known["trials"]) == numbers:
            self._playoff = Playoff.model_validate(known)
            return
        if len(entrants) < 2:
            return
        logger.info("playoff: trials %s are timed again in turn", ", ".join(map(str, numbers)))
        timeout_s = self._config.runner.trial_timeout_s
        outcome = run_playoff(self._runner, entrants, assemble.workload_spec(self._config), timeout_s=timeout_s)
        if isinstance(outcome, str):
            logger.warning("playoff: %s; the winner is named by the trials' own figures", outcome)
            return
        self._playoff = outcome
        study.set_attribute(_PLAYOFF, outcome.model_dump(mode="json"))

    def _log_plan(self) -> None:
        shape = self._inspection.shape
        for blocks in shape.block_lists:
            units = ", ".join(f"{name}={path}" for name, path in blocks.units) or "none found"
            logger.info("blocks %s: %d x %s; units: %s", blocks.path, blocks.num_blocks, blocks.kind, units)
        for note in (*shape.notes, *self._choices.notes()):
            logger.info("note: %s", note)
        cap = self._objective.memory_cap_bytes
        kind = self._inspection.environment.get("device_kind")
        measure = "allocated on the CPU by torch" if kind == "cpu" else "reserved by the device's caching allocator"
        logger.info("memory cap: %s, tested against the peak %s", describe_bytes(cap), measure)

    def _finish(self, mlflow: MlflowListener) -> StudySummary:
        """Writes every file of the study and completes its MLflow run."""
        results = self.results()
        summary = summarize(results)
        report = report_html(results, summary)
        texts = {names.FRONT_FILE: front_html(results), names.REPORT_FILE: report}
        self._folder.write(self._folder.results_file, results.to_json())
        self._folder.write(self._folder.report_file, report)
        best = results.best_trial()
        if best is None:
            self._folder.remove(self._folder.policy_file)
        else:
            texts[names.POLICY_FILE] = PolicyExporter().export(results, best)
            self._folder.write(self._folder.policy_file, texts[names.POLICY_FILE])
        mlflow.finish(texts=texts, markdown="\n\n".join(summary.sentences))
        return summary


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the search as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """What was measured is written even if the user is impatient."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
