"""Which release of a stack a file is written for: the newest stable one, or the one that the user names."""

from __future__ import annotations

import difflib
from importlib import metadata

from packaging.version import InvalidVersion, Version

from tuner.export.base import Exporter, ExportError, StackVersion


def choose_version(exporter: Exporter, wanted: str | None) -> StackVersion:
    """The entry of the exporter's versions that the user means.

    Args:
        wanted: Name of an entry, or a release of the stack's package; None takes the first.

    Raises:
        ExportError: There is none; the message lists those that exist.
    """
    if wanted is None:
        return exporter.versions[0]
    for version in exporter.versions:
        if version.name == wanted or (version.by_release and _covers(version, wanted)):
            return version
    names = [version.name for version in exporter.versions]
    known = ", ".join(f"{version.name} ({version.covers})" for version in exporter.versions)
    near = difflib.get_close_matches(wanted, names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ExportError(f"--stack-version is {wanted!r}; {exporter.name} is written for {known}{hint}; name one of these")


def installed_misfit(version: StackVersion) -> str | None:
    """What to tell a user whose installed package is of another release; None where all is well."""
    if version.package is None:
        return None
    try:
        installed = metadata.version(version.package)
    except metadata.PackageNotFoundError:
        return None
    if _covers(version, installed):
        return None
    return (
        f"{version.package} {installed} is installed here, but this file is for {version.covers}; for this machine "
        f"name --stack-version {installed}"
    )


def _covers(version: StackVersion, release: str) -> bool:
    try:
        number = Version(release)
    except InvalidVersion:
        return False
    if version.since is None and version.until is None:
        return False
    return (version.since is None or Version(version.since) <= number) and (
        version.until is None or number < Version(version.until)
    )
