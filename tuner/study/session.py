"""One session of `tune run`: from a checked search file to a finished, interrupted or failed study."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from optuna.exceptions import DuplicatedStudyError
from optuna.trial import FrozenTrial

from mlflow_config import names
from mlflow_config.recorder import StudyRecorder
from mlflow_config.settings import ignored_environment
from runners.base import RunnerError, TrialRunner
from runners.diagnosis.records import UnitCost
from runners.trial import ModelInspection, Prediction, TrialResult
from search_spaces.ablation import plain_policies
from search_spaces.policy import RecomputePolicy
from search_spaces.registry import encoding_of, make_space
from tuner import assemble
from tuner.config import SearchConfig
from tuner.diagnosis.study_unit_costs import measure_unit_costs
from tuner.interrupts import Interrupts
from tuner.objective import Objective, Score
from tuner.playoff import playoff_entrants, run_playoff
from tuner.recording import StudyRecording
from tuner.results import LOST_STATUSES, StudyResults, StudyStatus
from tuner.results_ledger import ResultsLedger
from tuner.sampling.policy_study import PolicyStudy, has_policy_study, open_policy_study
from tuner.sampling.registry import FALLBACK, MODEL_GUIDED, Guide, make_sampler
from tuner.sampling.tried_policies import TriedPolicies
from tuner.search import Search, SearchListener
from tuner.search_file.load import resolved_yaml
from tuner.speed_ratio import Playoff
from tuner.study.earlier_sessions import (
    EarlierSessions,
    another_study,
    nothing_to_resume,
    refuse_wrong_beginning,
    stored_goal,
)
from tuner.study.folder import StudyFolder, StudyFolderError
from tuner.study.forecast import forecast_study
from tuner.study.known_keep_sets import with_known_keep_sets
from tuner.study.mlflow_listener import MlflowListener
from tuner.study.network_files import network_file_warning
from tuner.study.output import StudyOutput, final_texts
from tuner.study.record import goal_of, search_data
from tuner.study.search_log import log_search
from tuner.study.storage import StudyStorageError, study_storage
from tuner.study.time_spent import TimeSpent
from tuner.study.timelines import StudyTimelines, trace_study
from tuner.summary import StudySummary, summarize

logger = logging.getLogger(__name__)

#: One set of field names for all results that are kept.
_RESULT_FIELDS = set(TrialResult.model_fields)
_ELAPSED = "elapsed_s"


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


def run_study(
    config: SearchConfig,
    runner: TrialRunner,
    *,
    resume: bool,
    make_progress: ProgressMaker,
    interrupts: Interrupts | None = None,
) -> Outcome:
    """Searches until a rule says stop or the user interrupts; whatever was measured is kept either way.

    Args:
        interrupts: Those of a caller who has more to do before signals may end the program.

    Raises:
        StudyExistsError: There is such a study already, or there is none to resume.
        StudyBusyError: Another driver runs it.
        StudyChangedError: On resume: another space, cap, model or goal.
        StudyStorageError: The store of trials does not work.
        GoalError: The cap is no cap on this device.
        RunnerError: The model cannot be built as named, or nothing can run here.
        KeyboardInterrupt: Ctrl-C or SIGTERM before there was anything to keep.
    """
    spent = TimeSpent(time.monotonic())
    folder = StudyFolder(assemble.output_dir(config), config.study)
    interrupts = interrupts or Interrupts()
    with interrupts.handled():
        folder.raise_if_busy()
        refuse_wrong_beginning(folder, config.study, resume=resume, has_shared_storage=config.storage is not None)
        # The model and the cluster are tried before anything is written: a refused search leaves no folder behind.
        logger.info("%s", runner.describe())
        inspection = runner.inspect(assemble.inspection_spec(config))
        if resume:
            storage = study_storage(config.storage, folder.database)
            inspection = with_known_keep_sets(
                inspection, folder.results_file, lambda: stored_goal(config.study, storage)
            )
        session = _Session(config, runner, folder, inspection, interrupts, spent)
        with folder.locked():
            # Another driver may have begun it meanwhile, and may even be through.
            refuse_wrong_beginning(folder, config.study, resume=resume, has_shared_storage=config.storage is not None)
            return session.run(make_progress, resume=resume)


class _Session:
    def __init__(
        self,
        config: SearchConfig,
        runner: TrialRunner,
        folder: StudyFolder,
        inspection: ModelInspection,
        interrupts: Interrupts,
        spent: TimeSpent,
    ) -> None:
        self._config = config
        self._spent = spent
        self._runner = runner
        self._folder = folder
        self._inspection = inspection
        self._interrupts = interrupts
        cap_bytes = assemble.memory_cap_bytes(config, inspection)
        self._choices = assemble.search_choices(config, inspection)
        self._reference = assemble.reference_policy(self._choices, inspection)
        self._objective: Objective = assemble.objective_for(config, cap_bytes, self._reference)
        self._tracking = assemble.tracking(config)
        self._storage = study_storage(config.storage, folder.database)
        with spent.on("dry run"):
            self._forecast = forecast_study(runner, config, self._choices, inspection, cap_bytes=cap_bytes)
        self._sampler = self._usable_sampler()
        self._plan = plain_policies(self._choices)
        if self._sampler == MODEL_GUIDED:
            # The models say better than any fixed order what to measure after the baseline.
            self._plan = self._plan[:1]
        self._resolved = resolved_yaml(config, credentials="hidden")
        self._search_data = search_data(config)
        self._earlier = EarlierSessions(
            config.study, folder, self._storage, self._objective, goal_of(self._search_data, inspection)
        )
        self._status: StudyStatus = "running"
        self._stop_reason: str | None = None
        self._results: dict[int, TrialResult] = {}
        self._baseline_key = self._plan[0].key
        self._ledger = ResultsLedger(
            study=config.study,
            search=self._search_data,
            inspection=inspection,
            environment=inspection.environment,
            baseline_key=self._baseline_key,
            objective=self._objective,
        )
        self._measured_baseline: TrialResult | None = None
        self._output = StudyOutput(folder, self.results)
        self._playoff: Playoff | None = None
        self._timelines = StudyTimelines()
        #: They depend on nothing that a session may change.
        self._unit_costs: tuple[UnitCost, ...] = ()

    def _usable_sampler(self) -> str:
        """The sampler that the user named; `tpe` where it needs a dry run and there is none."""
        name = self._config.search.sampler
        if name == MODEL_GUIDED and self._forecast is None:
            logger.warning("search.sampler is %s, which needs a dry run; searching with %s instead", name, FALLBACK)
            return FALLBACK
        return name

    def run(self, make_progress: ProgressMaker, *, resume: bool) -> Outcome:
        self._earlier.read_folder()
        self._unit_costs = self._earlier.unit_costs
        if not resume:
            self._begin_folder()
        with self._storage.errors():
            study = self._open_study(is_new=not resume)
            search: Search | None = None
            recorder = StudyRecorder(self._tracking, study=self._config.study, study_id=self._earlier.study_id)
            mlflow = self._mlflow_listener(recorder)
            progress = make_progress(self.results, lambda: 0.0 if search is None else search.elapsed_s)
            search = self._search(study, [self, mlflow, progress])
        log_search(self._inspection, self._choices, memory_cap_bytes=self._objective.memory_cap_bytes)
        try:
            self._folder.write(self._folder.search_file, self._resolved)
            self._output.write_results()
            with self._interrupts.held():
                recorder.load()
            mlflow.open()
            with progress, self._storage.errors():
                with self._interrupts.held(), self._spent.on("trials"):
                    reason = search.run(pause=self._interrupts.raise_if_pending)
                if not reason.is_failure:
                    with self._spent.on("playoff"):
                        self._run_playoff(study)
                    with self._spent.on("costs of units"):
                        self._measure_unit_costs()
            self._status = "failed" if reason.is_failure else "finished"
            self._stop_reason = reason.message
            if not reason.is_failure:
                with self._spent.on("timelines"):
                    self._timelines = trace_study(self._runner, self._config, self._inspection, self.results())
        except KeyboardInterrupt:
            self._status, self._stop_reason = "interrupted", "interrupted by the user"
        except (RunnerError, StudyStorageError) as error:
            self._status, self._stop_reason = "failed", str(error).rstrip(".")
        except BaseException:
            self._status, self._stop_reason = "failed", "the search itself failed; its log says why"
            raise
        finally:
            self._interrupts.refuse()
            self._leave(search, study)
            study.close()
            summary = self._finish(mlflow)
            recorder.close()
            logger.info("%s", self._spent.text())
        return Outcome(self.results(), summary, self._folder)

    def results(self) -> StudyResults:
        """The study as it stands."""
        return self._ledger.results(
            status=self._status,
            stop_reason=self._stop_reason,
            playoff=self._valid_playoff(),
            unit_costs=self._unit_costs,
        )

    def started(self, trial_number: int, policy: object) -> None:
        """Nothing is kept of a trial before it has ended."""

    def finished(self, result: TrialResult, score: Score) -> None:
        self._keep(result)
        self._output.trial_ended(result)

    def _keep(self, result: TrialResult) -> None:
        """Remembers a result, without the long form of its reason: thousands are kept as long as the study runs."""
        result = TrialResult.model_construct(_RESULT_FIELDS, **{**dict(result), "detail": None})
        self._results[result.trial_number] = result
        self._ledger.add(result)
        if result.samples_per_second is not None and result.policy.key == self._baseline_key:
            self._measured_baseline = result

    def _begin_folder(self) -> None:
        """Before a storage that others share has the study: after a kill between the two, it could not be resumed."""
        self._ledger.study_id = self._earlier.study_id
        self._output.write_results()
        self._folder.write(self._folder.search_file, self._resolved)

    def _open_study(self, *, is_new: bool) -> PolicyStudy:
        """The study with the trials of earlier sessions."""
        space = make_space(encoding_of(self._choices), self._choices)
        tried = TriedPolicies(space, self._objective)
        guide = None if self._forecast is None else Guide(self._forecast.proposer, tried)
        sampler = make_sampler(self._sampler, space, seed=self._config.search.seed, guide=guide)

        def predict(policy: RecomputePolicy, trials: Sequence[FrozenTrial]) -> Prediction | None:
            return None if self._forecast is None else self._forecast.predict(policy, tried.read(trials))

        def open_study() -> PolicyStudy:
            return open_policy_study(
                self._config.study,
                space=space,
                sampler=sampler,
                storage=self._storage.url,
                predict=predict,
                is_new=is_new,
                patience=self._storage.patience(self._interrupts.sleep),
            )

        if not is_new and not self._folder.exists() and not has_policy_study(self._config.study, self._storage.url):
            raise nothing_to_resume(self._config.study, self._folder, self._storage)
        study = self._open_new(open_study) if is_new else open_study()
        try:
            self._join(study)
        except BaseException:
            study.close()
            raise
        return study

    def _open_new(self, open_study: Callable[[], PolicyStudy]) -> PolicyStudy:
        try:
            return open_study()
        except Exception as error:  # not where a signal came, for the storage may have the study then
            self._folder.forget_beginning()
            if isinstance(error, DuplicatedStudyError):
                raise another_study(self._config.study, self._storage) from error
            raise

    def _join(self, study: PolicyStudy) -> None:
        """Reads the trials of earlier sessions, after closing those that a dead driver left."""
        self._earlier.join(study)
        self._ledger.study_id = self._earlier.study_id
        for result in study.results():
            self._keep(result)
        self._playoff = self._earlier.playoff(study)

    def _mlflow_listener(self, recorder: StudyRecorder) -> MlflowListener:
        for warning in (ignored_environment(self._tracking), network_file_warning(self._storage.url, self._tracking)):
            if warning is not None:
                logger.warning("%s", warning)
        recording = StudyRecording(
            recorder,
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
        return MlflowListener(recording, self.results)

    def _search(self, study: PolicyStudy, listeners: Sequence[SearchListener]) -> Search:
        baseline, *others = self._plan
        lost = [result.policy for result in self._results.values() if result.status in LOST_STATUSES]
        return Search(
            study,
            self._runner,
            objective=self._objective,
            rules=assemble.stop_rules(self._config),
            make_spec=assemble.spec_maker(
                self._config, self._inspection, cap_bytes=self._objective.memory_cap_bytes, reference=self._reference
            ),
            listeners=listeners,
            plan=[baseline, *lost, *others],
            previous=list(self._results.values()),
            previous_elapsed_s=float(study.attribute(_ELAPSED) or 0.0),
        )

    def _leave(self, search: Search, study: PolicyStudy) -> None:
        """Stops what is in flight and keeps how long the study has run."""
        try:
            with self._storage.errors():
                search.cancel()
                # Trials whose creation or end the storage did not confirm.
                study.close_interrupted(self._objective.score, self._results.get)
                study.set_attribute(_ELAPSED, search.elapsed_s)
        except StudyStorageError as error:
            if self._status != "failed":
                logger.warning("%s", error)

    def _run_playoff(self, study: PolicyStudy) -> None:
        """Times the closest trials again, in turn; a resumed study that learned nothing new keeps its playoff."""
        if self._valid_playoff() is not None:
            return
        entrants = self._playoff_entrants()
        if len(entrants) < 2:
            return
        numbers = ", ".join(str(entrant.trial_number) for entrant in entrants)
        logger.info("playoff: trials %s are timed again in turn", numbers)
        outcome = run_playoff(
            self._runner,
            entrants,
            assemble.workload_spec(self._config, self._inspection),
            time_limit_s=self._config.search.time_limit_s,
            timeout_s=self._config.runner.trial_timeout_s,
        )
        if isinstance(outcome, str):
            logger.warning("playoff: %s; the winner is named by the trials' own figures", outcome)
            return
        self._playoff = outcome
        self._earlier.keep_playoff(study, outcome)

    def _playoff_entrants(self) -> list[TrialResult]:
        return playoff_entrants(self._ledger.standings, self._measured_baseline)

    def _valid_playoff(self) -> Playoff | None:
        """The last playoff, as long as the same trials would meet in another one."""
        if self._playoff is None:
            return None
        entrants = tuple(entrant.trial_number for entrant in self._playoff_entrants())
        return self._playoff if entrants == self._playoff.trials else None

    def _measure_unit_costs(self) -> None:
        """Last of all, so that no trial is disturbed; a study is as good without them."""
        ran = [result for result in self._results.values() if result.samples_per_second is not None]
        if self._unit_costs or not ran:
            return
        logger.info("measuring what each block and unit costs to keep and to rebuild")
        outcome = measure_unit_costs(self._runner, self._config, self._choices, ran)
        if isinstance(outcome, str):
            logger.warning("costs of blocks and units: none, since %s", outcome)
        else:
            self._unit_costs = outcome

    def _finish(self, mlflow: MlflowListener) -> StudySummary:
        """Writes every file of the study and completes its MLflow run, the one even where the other fails."""
        results = self.results()
        summary = summarize(results)
        texts = final_texts(results, summary)
        try:
            texts |= self._output.write_all(texts, self._timelines)
        except StudyFolderError as error:
            # The answer is shown all the same.
            logger.error("%s; what was measured is kept, and --resume writes the files", error)
            self._status, self._stop_reason = "failed", str(error)
        finally:
            mlflow.finish(texts=texts, markdown="\n\n".join(summary.sentences))
        return summary
