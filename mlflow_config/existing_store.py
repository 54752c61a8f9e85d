"""Whether a database is a tracking store: MLflow would make one of any, so who only reads asks first."""

from __future__ import annotations

from mlflow_config.database_driver import with_installed_driver
from mlflow_config.database_errors import driver_error
from mlflow_config.errors import TrackingError
from mlflow_config.settings import TrackingSettings

#: A table that every release of MLflow has.
_TABLE = "experiments"


def check_is_store(settings: TrackingSettings) -> None:
    """Passes where the database has MLflow's tables.

    Raises:
        TrackingError: There is no such file, or no such tables, or it does not answer.
    """
    path = settings.sqlite_path
    if path is not None and not path.exists():
        raise TrackingError(_refusal(settings, "there is no such file"))
    # SQLAlchemy takes a while to load.
    from sqlalchemy import create_engine, inspect
    from sqlalchemy.exc import SQLAlchemyError

    try:
        engine = create_engine(with_installed_driver(settings.uri))
        try:
            has_tables = inspect(engine).has_table(_TABLE)
        finally:
            engine.dispose()
    except (SQLAlchemyError, ImportError) as error:
        said = " ".join(str(driver_error(error) or error).split())
        raise TrackingError(_refusal(settings, said)) from error
    if not has_tables:
        raise TrackingError(_refusal(settings, f"it has no table {_TABLE}"))


def _refusal(settings: TrackingSettings, reason: str) -> str:
    return (
        f"{settings.shown_uri} is no tracking store ({reason}); the database or server that the study was recorded in "
        "is needed. Name the one that search.yaml names as tracking.uri, or mlflow.db in its output_dir"
    )
