"""Addresses in search.yaml, of stores and clusters: which are allowed, and how they are shown without credentials."""

from __future__ import annotations

import re

from search_spaces.yaml_words import quoted

_STUDY_STORE = re.compile(r"(sqlite|postgresql)(\+\w+)?://[^\x00-\x20][^\x00-\x1f]*")
_TRACKING_STORE = re.compile(r"(https?|sqlite|postgresql|mysql|mssql)(\+\w+)?://[^\x00-\x20][^\x00-\x1f]*")
_IN_MEMORY = re.compile(r"sqlite(\+\w+)?://(/?|/:memory:.*|/file::memory:.*)")
_SQLITE_FILE = re.compile(r"sqlite(\+\w+)?:///.+")
_RAY_CLUSTER = re.compile(r"(ray://)?([^\s/@]+@)?(\[[\da-fA-F:.]+\]|[^\s/@:\[\]]+):(?P<port>[0-9]{1,5})")
_MAX_PORT = 65535
#: Parts of a query that databases and servers take as credentials.
_SECRET_IN_QUERY = re.compile(r"(?i)(password|passwd|pwd|token|secret|key|credential|user)([\w-]*=)[^&;\s]*")


def redact_url(url: str) -> str:
    """The address with user, password and secret query values replaced by ``***``; more rather than less is hidden."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    is_file = scheme.startswith(("sqlite", "file")) and rest.startswith("/")
    if "@" in rest and not is_file:
        rest = "***@" + rest.rpartition("@")[2]
    address, question_mark, query = rest.partition("?")
    return scheme + separator + address + question_mark + _SECRET_IN_QUERY.sub(r"\1\2***", query)


def check_study_store(url: str) -> str:
    """The address of Optuna's store, unchanged.

    Raises:
        ValueError: Trials cannot be kept there; the message follows the option's name and holds no credentials.
    """
    allowed = "sqlite:///FILE or postgresql://HOST/DATABASE"
    if not _STUDY_STORE.fullmatch(url):
        advice = "leave it out to keep trials in the study's folder"
        if "://" not in url and "@" not in url and url.strip():
            advice = f"write sqlite:///{url.strip()} if that file is meant, or {advice}"
        raise ValueError(f"is {_shown(url)}; allowed: {allowed}; {advice}")
    _check_sqlite(url, allowed)
    return url


def check_tracking_store(uri: str) -> str:
    """The address of MLflow's store, unchanged.

    Raises:
        ValueError: MLflow cannot keep results there; the message follows the option's name and holds no credentials.
    """
    allowed = "a database (sqlite:///FILE, postgresql://..., mysql://..., mssql://...) or a server (http://, https://)"
    if not _TRACKING_STORE.fullmatch(uri):
        raise ValueError(
            f"is {_shown(uri)}; MLflow keeps no new results in folders of files; allowed: {allowed}; "
            f"write sqlite:///{_database_beside(uri)}, or leave it out for one file under output_dir"
        )
    _check_sqlite(uri, allowed)
    return uri


def check_ray_address(address: str) -> str:
    """The address of a running Ray cluster, unchanged.

    Raises:
        ValueError: Ray takes it for none, or would start a cluster of its own; the message follows the option's name.
    """
    found = _RAY_CLUSTER.fullmatch(address)
    if address != "auto" and (found is None or not 0 < int(found["port"]) <= _MAX_PORT):
        advice = "leave it out for a private cluster on this machine"
        if address.startswith(("http://", "https://")):
            advice = "the address of a job server is for `tune submit --address`"
        raise ValueError(
            f"is {_shown(address)}; allowed: HOST:PORT such as head.example:6379, ray://HOST:PORT, or auto for the "
            f"cluster that runs on this machine; {advice}"
        )
    return address


def _check_sqlite(url: str, allowed: str) -> None:
    if not url.startswith("sqlite"):
        return
    if _IN_MEMORY.fullmatch(url):
        raise ValueError(f"is {_shown(url)}, which is gone when the program ends; allowed: {allowed}; name a file")
    if not _SQLITE_FILE.fullmatch(url):
        raise ValueError(f"is {_shown(url)}, where a slash is missing; allowed: {allowed}; write three slashes or four")


def _database_beside(uri: str) -> str:
    """A database file next to the folder that somebody meant."""
    folder = re.sub(r"^file:(//)?", "", uri).rstrip("/")
    if re.search(r"[@:?%\s\x00]", folder) or not folder:
        return "mlflow.db"
    parent, slash, name = folder.rpartition("/")
    return folder if name.endswith((".db", ".sqlite")) else f"{parent}{slash}mlflow.db".removeprefix("./")


def _shown(url: str) -> str:
    return quoted(redact_url(url))
