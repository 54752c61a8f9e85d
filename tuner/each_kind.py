"""A search on every kind of accelerator that a cluster has: a study of its own on each, since times do not compare."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runners.base import RunnerError
from tuner import assemble
from tuner.config import SearchConfig

if TYPE_CHECKING:
    from runners.ray_runner import RayRunner


def each_kind(config: SearchConfig) -> Sequence[tuple[SearchConfig, RayRunner]]:
    """The search on each kind, the study's name followed by the kind's, and what runs its trials, not opened yet.

    Args:
        config: With an absolute `base_dir`.

    Raises:
        RunnerError: The cluster has no accelerators that Ray knows the kind of.
    """
    runner = assemble.ray_runner(config)
    try:
        kinds = runner.kinds()
        # The files that are sent were read before: a job's folder goes away with its first connection.
        studies = [(_on(config, kind), runner.on_kind(kind)) for kind in kinds]
    finally:
        runner.close()
        _leave_removed_folder()
    if not kinds:
        raise RunnerError(
            "runner.accelerator_type is all, but the cluster has no accelerators that Ray knows the kind of; name such "
            "a cluster by runner.ray_address, or remove accelerator_type"
        )
    return studies


def _leave_removed_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir(Path.home())  # Nothing is looked for there: all paths of a job are absolute.


def _on(config: SearchConfig, kind: str) -> SearchConfig:
    study = f"{config.study}-{re.sub(r'[^A-Za-z0-9]+', '-', kind)}"
    runner = config.runner.model_copy(update={"accelerator_type": kind})
    return config.model_copy(update={"study": study, "runner": runner})
