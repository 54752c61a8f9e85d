"""`tune ui`: MLflow's own server on the tracking store."""

from __future__ import annotations

from pathlib import Path

from mlflow_config.errors import TrackingError
from mlflow_config.server import serve
from mlflow_config.settings import tracking_settings
from tuner.console import EXIT_DONE, err_console
from tuner.user_error import UserError


def ui_command(*, output_dir: Path, uri: str | None, host: str, port: int) -> int:
    """Serves until interrupted; gives back the exit code."""
    try:
        settings = tracking_settings(output_dir=output_dir, experiment="studies", uri=uri)
        serve(settings, host=host, port=port, announce=lambda line: err_console.print(line, soft_wrap=True))
    except (ValueError, TrackingError) as error:
        raise UserError(str(error).replace("tracking.uri", "--uri")) from error
    return EXIT_DONE
