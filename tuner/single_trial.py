"""One trial outside of any study, for `tune check` and `tune verify`."""

from __future__ import annotations

from runners.base import TrialRunner
from runners.trial import TrialResult, TrialSpec

#: Seconds between looks at a trial that is not finished.
_COLLECT_TIMEOUT_S = 1.0


def run_single_trial(runner: TrialRunner, spec: TrialSpec) -> TrialResult:
    """Runs the trial to its end; a trial that went wrong is a result as well."""
    runner.submit(spec)
    while True:
        for result in runner.collect(_COLLECT_TIMEOUT_S):
            return result
