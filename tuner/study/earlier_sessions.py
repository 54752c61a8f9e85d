"""What a study has from earlier sessions: whether this one may go on with it, and what to do about what is missing."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from typing import Any

from runners.diagnosis.records import UnitCost
from runners.trial import Prediction, TrialResult
from tuner.objective import Objective
from tuner.results import StudyResults, TrialRecord
from tuner.results_file import ResultsError, read_results
from tuner.sampling.policy_study import PolicyStudy, stored_attribute
from tuner.speed_ratio import Playoff
from tuner.study.folder import StudyFolder
from tuner.study.record import changes, goal_of_results
from tuner.study.storage import StudyStorage
from tuner.user_error import UserError

logger = logging.getLogger(__name__)

_GOAL, _PLAYOFF = "goal", "playoff"


class StudyExistsError(UserError):
    """A study of this name is there and this run must not touch it; the message is one line for the user."""


class StudyChangedError(UserError):
    """The search file no longer describes the study to be resumed; the lines say what changed."""


def refuse_wrong_beginning(folder: StudyFolder, study: str, *, resume: bool, has_shared_storage: bool) -> None:
    """Says whether a study of this name can begin, or go on, in the folder.

    Args:
        has_shared_storage: Trials are kept where other machines reach them, so that a study goes on without its folder,
            say after the node of its driver was lost.

    Raises:
        StudyExistsError: There is such a study already, or there is none to resume.
    """
    if folder.exists() and not resume:
        raise StudyExistsError(
            f"study {study} is in {folder.path} already; continue it with --resume, or give this search another "
            "name with `study:`"
        )
    if resume and not folder.exists() and not has_shared_storage:
        raise StudyExistsError(f"there is no study {study} in {folder.path.parent} to resume; run without --resume")


def another_study(study: str, storage: StudyStorage) -> StudyExistsError:
    """What is said where a shared storage has a study of this name that is not this one."""
    return StudyExistsError(
        f"study {study}: {storage.shown} holds trials of a study of this name already; continue it with --resume in "
        "its own folder, or give this search another name with `study:`"
    )


def nothing_to_resume(study: str, folder: StudyFolder, storage: StudyStorage) -> StudyExistsError:
    """What is said where neither the folder nor a shared storage has the study."""
    return StudyExistsError(
        f"there is no study {study} in {folder.path.parent} nor in {storage.where} to resume; run without --resume"
    )


def stored_goal(study: str, storage: StudyStorage) -> Mapping[str, Any] | None:
    """The goal of a study that an earlier session has begun in this storage; None where none has.

    Raises:
        StudyStorageError: The storage does not work.
    """
    with storage.errors():
        goal: Mapping[str, Any] | None = stored_attribute(study, storage.url, _GOAL)
    return goal


class EarlierSessions:
    """Joins a study to what earlier sessions left of it, in its folder and in its storage.

    Args:
        goal: What the study measures and what wins, now.

    Attributes:
        study_id: What tells the study from every other one. The folder has it first, so that a study of the same name
            in a shared storage is never taken for this one.
    """

    def __init__(
        self, name: str, folder: StudyFolder, storage: StudyStorage, objective: Objective, goal: Mapping[str, Any]
    ) -> None:
        self._name = name
        self._folder = folder
        self._storage = storage
        self._objective = objective
        self._goal = dict(goal)
        self._results: StudyResults | None = None
        self._is_unreadable = False
        self.study_id = uuid.uuid4().hex

    def read_folder(self) -> None:
        """Reads what is left in the folder; to be called once the folder is this driver's alone."""
        if not self._folder.results_file.exists():
            return
        try:
            self._results = read_results(self._folder.results_file)
        except ResultsError:
            self._is_unreadable = True  # Where the storage has what matters, the file is written anew.
            return
        self.study_id = self._results.study_id or self.study_id

    def join(self, study: PolicyStudy) -> None:
        """Closes the trials that a dead driver left, and takes in what only results.json has kept.

        Raises:
            StudyExistsError: The storage holds another study of this name, or it has lost the trials of this one, and
                results.json cannot be read either.
            StudyChangedError: Another space, cap, model or goal.
        """
        self._adopt_id(study)
        known = study.attribute(_GOAL)
        if known is None:
            self._begin(study)
        else:
            self._refuse_changes(known)
            study.close_interrupted(self._objective.score, self._kept_result)

    @property
    def unit_costs(self) -> tuple[UnitCost, ...]:
        """What each block and unit costs, as an earlier session measured it; empty where none has."""
        return () if self._results is None else tuple(self._results.unit_costs)

    def _adopt_id(self, study: PolicyStudy) -> None:
        stored = study.unique_id()
        in_folder = None if self._results is None else self._results.study_id
        if stored is None:
            study.set_unique_id(self.study_id)
        elif in_folder in (None, stored):
            self.study_id = stored
        else:
            raise another_study(self._name, self._storage)

    def _begin(self, study: PolicyStudy) -> None:
        """A new study, or one whose storage was lost; with the goal, which comes last, it has begun."""
        results = self._results
        if self._is_unreadable:
            raise StudyExistsError(
                f"study {self._name}: {self._folder.results_file} cannot be read, and {self._storage.shown} has no "
                "trials of this study any more; restore one of the two, or start anew under another name with `study:`"
            )
        if results is not None and results.trials:
            self._refuse_changes(goal_of_results(results))
            logger.warning(
                "%s has no trials of study %s any more; the %d of %s are taken over",
                self._storage.where,
                self._name,
                len(results.trials),
                self._folder.results_file,
            )
            study.restore(map(self._result, results.trials), self._objective.score)
            if results.playoff is not None:
                self.keep_playoff(study, results.playoff)
        study.set_attribute(_GOAL, self._goal)

    def playoff(self, study: PolicyStudy) -> Playoff | None:
        """The last one that was held."""
        kept = study.attribute(_PLAYOFF)
        return None if kept is None else Playoff.model_validate(kept)

    def keep_playoff(self, study: PolicyStudy, playoff: Playoff) -> None:
        """For the sessions to come."""
        study.set_attribute(_PLAYOFF, playoff.model_dump(mode="json"))

    def _refuse_changes(self, before: Mapping[str, Any]) -> None:
        changed = list(changes(before, self._goal))
        if changed:
            raise StudyChangedError(
                [
                    f"study {self._name} cannot be resumed: what it measures has changed. Undo the change, or give the "
                    "new search another name with `study:`",
                    *(f"  {line}" for line in changed),
                ]
            )

    def _kept_result(self, trial_number: int) -> TrialResult | None:
        record = None if self._results is None else self._results.trial(trial_number)
        return None if record is None else self._result(record)

    def _result(self, record: TrialRecord) -> TrialResult:
        """What was measured, without what the study makes of it."""
        own = {name: getattr(record, name) for name in TrialResult.model_fields if name in TrialRecord.model_fields}
        return TrialResult.model_validate(
            {
                **own,
                "trial_number": record.number,
                "policy": record.to_policy(),
                "prediction": self._prediction(record),
            }
        )

    def _prediction(self, record: TrialRecord) -> Prediction | None:
        peak, time_s = record.predicted_peak_memory_bytes, record.predicted_step_time_s
        if peak is None and time_s is None:
            return None
        unit_s = record.reference_step_time_s if self._objective.has_reference else float(record.global_batch_size)
        if time_s is None or unit_s is None:
            return Prediction(peak_memory_bytes=peak)
        spread_s = record.predicted_step_time_spread_s
        return Prediction(
            peak_memory_bytes=peak,
            time=time_s / unit_s,
            time_deviation=None if spread_s is None else spread_s / unit_s,
        )
