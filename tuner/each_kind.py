"""A search on every kind of accelerator that a cluster has: a study of its own on each, since times do not compare."""

from __future__ import annotations

import re
from collections.abc import Sequence

from runners.base import RunnerError
from tuner import assemble
from tuner.config import SearchConfig


def each_kind(config: SearchConfig) -> Sequence[SearchConfig]:
    """The search on each kind, the study's name followed by the kind's.

    Raises:
        RunnerError: The cluster has no accelerators that Ray knows the kind of.
    """
    runner = assemble.ray_runner(config)
    try:
        kinds = runner.kinds()
    finally:
        runner.close()
    if not kinds:
        raise RunnerError(
            "runner.accelerator_type is all, but the cluster has no accelerators that Ray knows the kind of; name such "
            "a cluster by runner.ray_address, or remove accelerator_type"
        )
    return [_on(config, kind) for kind in kinds]


def _on(config: SearchConfig, kind: str) -> SearchConfig:
    study = f"{config.study}-{re.sub(r'[^A-Za-z0-9]+', '-', kind)}"
    runner = config.runner.model_copy(update={"accelerator_type": kind})
    return config.model_copy(update={"study": study, "runner": runner})
