"""A search file and the user's code as a folder that a driver on the cluster can start from."""

from __future__ import annotations

import shlex
from pathlib import Path

from runners.cluster.code_package import pack_code, write_code
from tuner.config import SearchConfig
from tuner.search_file.load import resolved_yaml
from tuner.shipped_code import needs_user_files

#: Folder of the search file within what is sent. What is sent is on the import path of the driver, so the user's files
#: must not lie on top, where a `types.py` among them would replace Python's.
_FOLDER = "study"
#: Where studies go whose output_dir is relative: the driver's own folder goes away with the job.
_OUTPUT_DIR = "~/recompute-tuner-runs"


def on_the_cluster(config: SearchConfig) -> SearchConfig:
    """The config as the driver there needs it: the cluster that it runs on, and results at a place that stays."""
    runner = config.runner.model_copy(update={"ray_address": "auto"})
    is_absolute = config.output_dir.startswith(("/", "~"))
    return config.model_copy(update={"runner": runner, "output_dir": config.output_dir if is_absolute else _OUTPUT_DIR})


def write_submission(config: SearchConfig, folder: Path) -> None:
    """Fills the folder with the search file and, where a factory is beside it, the user's code.

    Raises:
        RunnerError: That code is too large to be sent, or outside of the search file's folder.
    """
    place = folder / _FOLDER
    place.mkdir(parents=True)
    moved = on_the_cluster(config)
    if needs_user_files(config):
        write_code(pack_code(config.base_dir, leave_out=[config.base_dir / config.output_dir]), place)
    (place / "search.yaml").write_text(resolved_yaml(moved, credentials="kept"))


def entrypoint(*, resume: bool) -> str:
    """The command that starts the driver in a copy of what `write_submission` wrote."""
    words = ["python", "-m", "tuner", "run", f"{_FOLDER}/search.yaml", *(["--resume"] if resume else [])]
    return shlex.join(words)
