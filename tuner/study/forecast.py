"""What a study can predict before its first trial: one dry run, told in the log, and the forecast made of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from runners.base import TrialRunner
from runners.trial import ModelInspection
from search_spaces.choices import SearchChoices
from search_spaces.policy import RecomputePolicy
from tuner import assemble
from tuner.config import SearchConfig
from tuner.forecast import Forecast, describe_dry_run, make_forecast

logger = logging.getLogger(__name__)


def forecast_study(
    runner: TrialRunner,
    config: SearchConfig,
    choices: SearchChoices,
    inspection: ModelInspection,
    *,
    cap_bytes: int,
) -> Forecast | None:
    """What can be predicted of this model's policies; None where it has no dry run."""

    def dry_run_peaks(policies: Sequence[RecomputePolicy]) -> Sequence[int]:
        return runner.dry_run(assemble.dry_run_spec(config, policies=policies)).peaks_bytes

    logger.info("dry run: steps on tensors without data, to predict peaks; this may take minutes for large models")
    answer = runner.dry_run(assemble.dry_run_spec(config, choices))
    compiled = config.model.compile
    forecast = make_forecast(
        choices,
        answer,
        cap_bytes=cap_bytes,
        dry_run_peaks=dry_run_peaks,
        is_compiled=compiled is not None,
        strategy=config.runner.strategy,
        cut=inspection.pipeline_cut,
        inspection=inspection,
        is_on_cpu=inspection.environment.get("device_kind") == "cpu",
    )
    logger.info("%s", describe_dry_run(answer))
    if compiled is not None:
        logger.info(
            "model.compile is %s: compiled code has other peaks than the dry run's, so none is stated; they guide "
            "the search as far as measured peaks bear them out",
            compiled,
        )
    return forecast
