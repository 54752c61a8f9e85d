"""Where a study is recorded: decided by search.yaml alone, so that no variable of the shell redirects it unseen."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

_DATABASE = re.compile(r"(sqlite|postgresql|mysql|mssql)(\+\w+)?://")
_SERVER = re.compile(r"https?://")
_SQLITE_FILE = re.compile(r"(?P<scheme>sqlite(?:\+\w+)?:///)(?P<path>[^?]+)(?P<query>\?.*)?")
#: Percent signs and question marks mean something in a database address, and not the same in every release.
_UNSAFE_IN_ADDRESS = re.compile(r"[%?]")


@dataclass(frozen=True)
class TrackingSettings:
    """Where results go.

    Attributes:
        uri: MLflow's tracking URI, absolute.
        experiment: Name of the experiment that the study's runs belong to.
        artifact_root: URI of the folder for artifacts; None leaves it to the tracking server.
    """

    uri: str
    experiment: str
    artifact_root: str | None

    @property
    def is_server(self) -> bool:
        """True where a tracking server owns the store; False where we open the database ourselves."""
        return _SERVER.match(self.uri) is not None

    @property
    def sqlite_path(self) -> Path | None:
        """The database file; None for every other kind of store."""
        found = _SQLITE_FILE.fullmatch(self.uri)
        return Path(found["path"]) if found else None

    @property
    def shown_uri(self) -> str:
        """The URI as it may be printed: without a password."""
        return hide_password(self.uri)


def tracking_settings(*, output_dir: Path, experiment: str, uri: str | None = None) -> TrackingSettings:
    """The settings for a study.

    Args:
        output_dir: Folder of all studies; holds the database and the artifacts where ``uri`` is None.
        experiment: Name of the experiment, for example that of the model.
        uri: ``tracking.uri`` as the user wrote it: a database or a tracking server.

    Raises:
        ValueError: MLflow cannot keep a study there; the message says what to write instead.
    """
    if not experiment.strip():
        raise ValueError(
            f"tracking.experiment is {experiment!r}; a name is expected; leave it out to use the model's name"
        )
    home = output_dir.expanduser().resolve()
    if uri is None:
        uri = _sqlite_uri(home / "mlflow.db", where="output_dir")
    elif _SERVER.match(uri):
        return TrackingSettings(uri.rstrip("/"), experiment, None)
    elif not _DATABASE.match(uri):
        raise ValueError(_refusal(uri, home))
    elif uri.startswith("sqlite"):
        uri = _absolute_sqlite_uri(uri)
    settings = TrackingSettings(uri, experiment, None)
    folder = (settings.sqlite_path.parent if settings.sqlite_path else home) / "mlflow-artifacts"
    return TrackingSettings(uri, experiment, folder.as_uri())


def ignored_environment(settings: TrackingSettings) -> str | None:
    """One sentence where MLFLOW_TRACKING_URI names another store than the one in use; None where it does not."""
    named = os.environ.get("MLFLOW_TRACKING_URI")
    if not named or named.rstrip("/") == settings.uri:
        return None
    return (
        f"MLFLOW_TRACKING_URI is {hide_password(named)}, but the study is recorded in {settings.shown_uri}: only "
        f"search.yaml decides. Write it as tracking.uri to record there."
    )


def hide_password(uri: str) -> str:
    """The URI with its password, if it has one, replaced by stars."""
    parts = urlsplit(uri)
    if "@" not in parts.netloc:
        return uri
    login, _, host = parts.netloc.rpartition("@")
    user, colon, _ = login.partition(":")
    return urlunsplit(parts._replace(netloc=f"{user}:***@{host}" if colon else f"{user}@{host}"))


def _refusal(uri: str, home: Path) -> str:
    path = uri.removeprefix("file://").removeprefix("file:")
    file = path if path.endswith((".db", ".sqlite")) else str(home / "mlflow.db")
    return (
        f"tracking.uri is {hide_password(uri)!r}; MLflow no longer keeps new results in a folder of files. A database "
        f"(sqlite:///FILE, postgresql://..., mysql://..., mssql://...) or a tracking server (http://..., https://...) "
        f"is allowed. Write sqlite:///{file}, or leave it out for one file under output_dir"
    )


def _absolute_sqlite_uri(uri: str) -> str:
    found = _SQLITE_FILE.fullmatch(uri)
    if found is None or found["path"].startswith((":memory:", "file:")):
        raise ValueError(
            f"tracking.uri is {uri!r}; results in memory would be gone when the study ends. A file is expected: "
            f"write sqlite:///FILE, or leave it out for one file under output_dir"
        )
    path = Path(found["path"]).expanduser().resolve()
    return _sqlite_uri(path, scheme=found["scheme"], where="tracking.uri") + (found["query"] or "")


def _sqlite_uri(path: Path, *, scheme: str = "sqlite:///", where: str) -> str:
    if _UNSAFE_IN_ADDRESS.search(str(path)):
        raise ValueError(
            f"{where} leads to {str(path)!r}; the address of a database cannot hold '%' or '?'. Use a folder without "
            f"them, or set tracking.uri to a file elsewhere"
        )
    return f"{scheme}{path.as_posix()}"
