"""Reads the files of a study back from MLflow, for commands on another machine than the one that it runs on."""

from __future__ import annotations

from mlflow_config import names
from mlflow_config.errors import TrackingError
from mlflow_config.settings import TrackingSettings
from mlflow_config.store import TrackingStore


def read_study_file(settings: TrackingSettings, study: str, path: str) -> str:
    """The text of one file of a study's own run; of several studies of that name, of the newest.

    Args:
        path: Inside the run's artifacts, one of `names`.

    Raises:
        TrackingError: There is no such store or study, the store is in trouble, or the study has left no such file
            yet.
    """
    store = TrackingStore(settings)
    store.open_existing()
    try:
        runs = store.find_own_runs(names.STUDY, study, with_tag=names.STUDY_ID)
        if not runs:
            raise TrackingError(
                f"STUDY is {study!r}, but no study of that name was tracked at {settings.shown_uri}; name another one"
            )
        return store.read_text(runs[-1], path)
    finally:
        store.close()
