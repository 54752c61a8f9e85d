"""Main loop of a worker process: one JSON request per line in, one JSON answer per line out, until the input ends."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
from typing import IO, Any

from pydantic import BaseModel

from runners.base import WorkloadError
from runners.diagnosis.records import DiagnosisSpec
from runners.parallel.records import RankSpec
from runners.step_timeline.records import StepTimelineSpec
from runners.trial import DryRunSpec, InspectionSpec, PlayoffSpec, QuestionKind, TrialSpec

#: Linux's prctl option that sends a signal to this process when its parent dies (linux/prctl.h).
_PR_SET_PDEATHSIG = 1
#: What each question is asked with; its kind is the name of the worker's method.
_QUESTIONS: dict[QuestionKind, type[BaseModel]] = {
    "dry_run": DryRunSpec,
    "playoff": PlayoffSpec,
    "diagnosis": DiagnosisSpec,
    "step_timeline": StepTimelineSpec,
}


def main() -> None:
    """Serves requests. What the user's code prints goes to standard error, and what it reads is empty, so that neither
    can mix with requests and answers."""
    _die_with_parent()
    # Before anything else: whoever watches over this process asks by this signal where it stands.
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    _serve(requests, answers)


def _serve(requests: IO[str], answers: IO[str]) -> None:
    # Loading torch takes seconds and may fail on a node that is not set up: that, too, is an answer.
    from runners.worker import TrialWorker

    worker = TrialWorker()
    for line in requests:
        answers.write(json.dumps(_answer(worker, json.loads(line))) + "\n")
        answers.flush()


def _answer(worker: Any, request: dict[str, Any]) -> dict[str, Any]:
    # Only what several ranks do together comes with the place of this process among them.
    place = {"rank": RankSpec.model_validate(request["rank"])} if "rank" in request else {}
    if request["kind"] == "inspect":
        try:
            inspection = worker.inspect(InspectionSpec.model_validate(request["spec"]))
        except WorkloadError as error:
            return {"workload_error": str(error)}
        return {"inspection": inspection.model_dump(mode="json"), "unclean_reason": worker.left_by_inspection}
    if request["kind"] == "run":
        result = worker.run(TrialSpec.model_validate(request["spec"]), **place)
        limits = worker.tighter_limits
        return {
            "result": result.model_dump(mode="json"),
            "unclean_reason": worker.unclean_reason(),
            "tighter_limits": None if limits is None else limits.model_dump(mode="json"),
        }
    answer = getattr(worker, request["kind"])(_QUESTIONS[request["kind"]].model_validate(request["spec"]), **place)
    return {"answer": answer.model_dump(mode="json")}


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
