"""`tune timeline`: one real step, and every tensor that it keeps for backward, from birth to last use."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.text import Text

from runners.base import TrialRunner
from runners.step_timeline.records import StepTimeline, TracedStep
from runners.trial import ModelInspection
from search_spaces.choices import SearchChoices
from search_spaces.policy import BatchShape, PolicyError, RecomputePolicy
from search_spaces.policy_file import load_policy
from search_spaces.yaml_words import quoted
from tuner import assemble
from tuner.commands.verify import refuse_other_model
from tuner.config import SearchConfig
from tuner.console import EXIT_DONE, EXIT_FAILED, err_console, show, show_text
from tuner.search_file.load import load_search_file
from tuner.study.folder import StudyFolder
from tuner.timeline.page import timeline_html
from tuner.timeline.table import timeline_table
from tuner.timeline.text import timeline_json, timeline_sentences
from tuner.user_error import UserError

logger = logging.getLogger(__name__)

_ALL = "all"
#: Of a number of blocks.
_MOST_DIGITS = 9


class TimelineOptionError(UserError):
    """An option of `tune timeline` that cannot be used; the message is one line for the user."""


@dataclass(frozen=True)
class TimelineOptions:
    """What the command line adds to the search file.

    Attributes:
        policy: A policy's file, its study's folder, or its study's name; None takes a plain step.
        micro_batch_size: In samples; None is the policy's own, or the largest that runs plain.
        blocks: As written: a number, ``0`` or ``all``.
        output: Folder to write to; None is the study's.
    """

    policy: str | None = None
    micro_batch_size: int | None = None
    blocks: str = "3"
    output: Path | None = None


def timeline_command(search_file: Path, options: TimelineOptions, *, as_json: bool) -> int:
    """Traces the step, shows what it keeps and writes the pages; gives back the exit code."""
    config = load_search_file(search_file)
    num_blocks = _num_blocks(options.blocks)
    policy_file = None if options.policy is None else _policy_file(options.policy, assemble.output_dir(config))
    policy = None if policy_file is None else load_policy(policy_file)
    shape = None if options.micro_batch_size is None else _batch_shape(config, options.micro_batch_size)
    runner = assemble.ray_runner(config)
    try:
        inspection = runner.inspect(assemble.inspection_spec(config))
        if policy is None or policy_file is None:
            choices = assemble.search_choices(config, inspection)
            answer = _plain(runner, config, inspection, choices, shape, num_blocks)
        else:
            refuse_other_model(inspection.shape, policy, policy_file)
            placed = replace(policy, batch=shape or policy.batch, measured=None)
            answer = _beside_plain(runner, config, inspection, placed, num_blocks)
    finally:
        runner.close()
    failure = answer.failure or (answer.steps[0].failure if answer.steps else None)
    if failure is not None:
        err_console.print(Text(f"{config.study}: the step could not be traced: {failure}"), soft_wrap=True)
        return EXIT_FAILED
    name = "timeline" if policy is None else f"timeline-{answer.steps[0].policy.key}"
    files = _write(config, answer.steps, options.output, name, num_blocks)
    if as_json:
        show_text(timeline_json(config.study, answer.steps))
        return EXIT_DONE
    for step in answer.steps:
        _show(step, num_blocks)
    show_text(f"Written: {' and '.join(map(str, files))}")
    return EXIT_DONE


def _num_blocks(text: str) -> int | None:
    if text == _ALL:
        return None
    if not text.isdecimal() or len(text) > _MOST_DIGITS:
        raise TimelineOptionError(
            f"--blocks is {quoted(text)}; write a number of blocks, or 0 or {_ALL} for all of them"
        )
    return int(text) or None


def _policy_file(named: str, output_dir: Path) -> Path:
    """The file that ``--policy`` means: a file, or the policy of a study by its folder or name."""
    for candidate in (Path(named), Path(named) / "policy.yaml", output_dir / named / "policy.yaml"):
        if os.path.isfile(candidate):
            return candidate
    raise TimelineOptionError(
        f"--policy is {quoted(named)}, which is no file, no study's folder with a policy.yaml, and no study in "
        f"{output_dir} that has one; name a policy.yaml, for example one of "
        "`tune export --format policy -o policy.yaml`"
    )


def _batch_shape(config: SearchConfig, micro_batch_size: int) -> BatchShape:
    try:
        return BatchShape.split(
            global_batch_size=config.batch.global_batch_size,
            micro_batch_size=micro_batch_size,
            data_parallel_degree=config.runner.data_parallel_degree,
        )
    except PolicyError as error:
        raise TimelineOptionError(f"--micro-batch-size: {error}; name a divisor") from error


def _plain(
    runner: TrialRunner,
    config: SearchConfig,
    inspection: ModelInspection,
    choices: SearchChoices,
    shape: BatchShape | None,
    num_blocks: int | None,
) -> StepTimeline:
    """A plain step at the named micro-batch, or at the largest one that runs."""
    shapes = choices.batches if shape is None else (shape,)
    for plain in map(RecomputePolicy, shapes):
        logger.info("tracing one step of %s", plain.summary())
        answer = runner.step_timeline(assemble.step_timeline_spec(config, inspection, (plain,), num_blocks=num_blocks))
        if answer.failure is not None or answer.steps[0].failure is None:
            break
    return answer


def _beside_plain(
    runner: TrialRunner,
    config: SearchConfig,
    inspection: ModelInspection,
    policy: RecomputePolicy,
    num_blocks: int | None,
) -> StepTimeline:
    """A step under the policy, and a plain one at the same micro-batch where that one fits."""
    plain = RecomputePolicy(policy.batch)
    logger.info("tracing one step of %s, and one of %s", policy.summary(), plain.summary())
    answer = runner.step_timeline(
        assemble.step_timeline_spec(config, inspection, (policy, plain), num_blocks=num_blocks)
    )
    if answer.failure is None:
        return answer
    # What ended the worker may have been the plain step, of which nobody asked that it fits.
    logger.warning("%s; tracing the policy's step alone", answer.failure)
    alone = assemble.step_timeline_spec(config, inspection, (policy,), num_blocks=num_blocks)
    return runner.step_timeline(alone)


def _write(
    config: SearchConfig, steps: Sequence[TracedStep], output: Path | None, name: str, num_blocks: int | None
) -> tuple[Path, Path]:
    folder = StudyFolder(assemble.output_dir(config), config.study)
    if output is not None:
        folder = StudyFolder(output.parent, output.name)
    page, data = folder.path / f"{name}.html", folder.path / f"{name}.json"
    folder.write(page, timeline_html(config.study, steps, num_blocks=num_blocks))
    folder.write(data, timeline_json(config.study, steps))
    return page, data


def _show(step: TracedStep, num_blocks: int | None) -> None:
    if step.failure is None:
        show(timeline_table(step, num_blocks))
    for sentence in timeline_sentences(step):
        show_text(sentence)
