"""Which files of the user's a cluster's nodes need: none, or the folder of the search file."""

from __future__ import annotations

import os
from pathlib import Path

from runners.base import RunnerError
from runners.cluster.code_package import CodePackage, pack_code
from tuner.config import SearchConfig


def code_to_ship(config: SearchConfig) -> CodePackage | None:
    """The folder of the search file where a factory of its is in there; None where nodes need no file of the user's.

    Raises:
        RunnerError: The folder is no small one, or a factory is outside of it; the message is one line for the user.
    """
    if config.runner.ray_address is None or not config.runner.ship_code or not needs_user_files(config):
        return None
    folder = config.base_dir.resolve()
    # Results lie where the command runs, which often is that folder.
    return pack_code(folder, leave_out=[Path(os.path.expanduser(config.output_dir)), folder / config.output_dir])


def needs_user_files(config: SearchConfig) -> bool:
    """Whether a factory lies in the folder of the search file.

    Raises:
        RunnerError: One lies outside of it, where only this machine finds it.
    """
    folder = config.base_dir.resolve()
    factories = {"model.factory": config.model.factory, "batch.factory": config.batch.factory or ""}
    return any([_is_in_folder(key, factory, folder) for key, factory in factories.items()])


def _is_in_folder(key: str, factory: str, folder: Path) -> bool:
    kind, _, name = factory.partition(":")
    place = factory.rpartition(":")[0]
    if kind == "huggingface":
        return (folder / Path(name).expanduser()).resolve().is_relative_to(folder) and (folder / name).is_dir()
    if place.endswith(".py"):
        file = (folder / Path(place).expanduser()).resolve()
        if not file.is_relative_to(folder):
            raise RunnerError(
                f"{key} is {factory}, outside of {folder}, which is the folder that is sent to the nodes; move the "
                "file beside the search file, or set runner.ship_code: false where every node has it at this path"
            )
        return True
    package = place.split(".")[0]
    return bool(package) and ((folder / package).is_dir() or (folder / f"{package}.py").is_file())
