"""Says where a study would keep a SQLite file that several machines share."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import make_url

from mlflow_config.settings import TrackingSettings
from mlflow_config.sqlite_file import SYSTEM_MOUNTS, network_file_system

_SQLITE = "sqlite"


def network_file_warning(storage_url: str, tracking: TrackingSettings, mounts: Path = SYSTEM_MOUNTS) -> str | None:
    """One line for the user; None where no SQLite file of the study is on a network file system.

    Args:
        storage_url: Optuna's store.
        tracking: MLflow's.
        mounts: The table of file systems to look into.
    """
    files = {"trials": _sqlite_file(storage_url), "runs of MLflow": tracking.sqlite_path}
    kinds = {what: network_file_system(file.parent, mounts) for what, file in files.items() if file is not None}
    shared = [what for what, kind in kinds.items() if kind is not None]
    if not shared:
        return None
    kind, file = kinds[shared[0]], files[shared[0]]
    assert file is not None
    return (
        f"the {' and the '.join(shared)} are kept in SQLite files on a network file system ({kind}: {file.parent}), "
        "whose locks can fail when several programs use one file; name a folder of a local disk with `output_dir:`, or "
        "a server with `storage:` and `tracking.uri:`"
    )


def _sqlite_file(url: str) -> Path | None:
    database = make_url(url).database if url.startswith(_SQLITE) else None
    return None if database is None else Path(database)
