"""Timelines of a study's baseline and winner, traced when the search is through; trouble with them costs nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from mlflow_config import names
from runners.base import RunnerError, TrialRunner
from runners.step_timeline.records import TracedStep
from runners.trial import ModelInspection, TrialStatus
from search_spaces.policy import RecomputePolicy
from tuner import assemble
from tuner.config import SearchConfig
from tuner.results import StudyResults
from tuner.study.folder import StudyFolder
from tuner.timeline.page import timeline_html
from tuner.timeline.text import timeline_json

logger = logging.getLogger(__name__)

BASELINE, WINNER = "baseline", "winner"
#: Blocks of each list whose tensors are drawn.
_NUM_BLOCKS = 3


@dataclass(frozen=True)
class StudyTimelines:
    """What could be traced: the step of the baseline, of the winner, of both or of none."""

    study: str = ""
    steps: Mapping[str, TracedStep] = field(default_factory=dict)

    def write(self, folder: StudyFolder) -> dict[str, str]:
        """Puts the pages into the study's folder, in place of older ones, and gives back what MLflow is to keep.

        Returns:
            Path of the artifact -> its text.
        """
        artifacts = {}
        for name in (BASELINE, WINNER):
            page_file = folder.path / f"timeline-{name}.html"
            step = self.steps.get(name)
            if step is None:
                folder.remove(page_file)
                continue
            # All on the same scales, so that the pages can be laid side by side.
            page = timeline_html(self.study, [step], num_blocks=_NUM_BLOCKS, beside=list(self.steps.values()))
            folder.write(page_file, page)
            artifacts[names.timeline_file(name, "html")] = page
            artifacts[names.timeline_file(name, "json")] = timeline_json(self.study, [step])
        return artifacts


def trace_study(
    runner: TrialRunner, config: SearchConfig, inspection: ModelInspection, results: StudyResults
) -> StudyTimelines:
    """Traces one step of the winner and one of the baseline; what cannot be traced is said in the log and left out.

    Nothing may be in flight.
    """
    policies = _policies(results)
    if not policies:
        return StudyTimelines()
    distinct = list({policy.key: policy for policy in policies.values()}.values())
    logger.info("tracing one step of %s", " and of ".join(f"the {name}" for name in policies))
    try:
        answer = runner.step_timeline(assemble.step_timeline_spec(config, inspection, distinct, num_blocks=_NUM_BLOCKS))
        failure, steps = answer.failure, {step.policy.key: step for step in answer.steps}
    except RunnerError as error:
        failure, steps = str(error), {}
    except KeyboardInterrupt:
        failure, steps = "interrupted", {}
    if failure is not None:
        logger.info("no timelines: %s", failure)
    traced = {}
    for name, policy in policies.items():
        step = steps.get(policy.key)
        if step is not None and step.failure is not None:
            logger.info("no timeline of the %s: %s", name, step.failure)
        elif step is not None:
            traced[name] = step
    return StudyTimelines(config.study, traced)


def _policies(results: StudyResults) -> dict[str, RecomputePolicy]:
    """What is traced, the winner first: it fits for certain."""
    policies = {}
    best, baseline = results.best_trial(), results.baseline
    if best is not None and best.to_policy().compile_memory_budget is None:
        policies[WINNER] = best.to_policy()
    elif best is not None:
        logger.info("no timeline of the winner: what the compiler keeps within a budget cannot be seen")
    if baseline is not None and baseline.status is TrialStatus.COMPLETED:
        policies[BASELINE] = baseline.to_policy()
    elif baseline is not None:
        logger.info("no timeline of the baseline: its trial ended as %s", baseline.status.value)
    return policies
