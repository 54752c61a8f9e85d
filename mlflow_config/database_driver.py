"""Which package talks to a PostgreSQL server, where the address does not say it."""

from __future__ import annotations

from importlib.util import find_spec

_PLAIN = "postgresql://"


def with_installed_driver(address: str) -> str:
    """The address for SQLAlchemy, whose releases each look for another package by default.

    Plain ``postgresql://`` becomes that of psycopg where it is installed and psycopg2 is not; all else stays as it is.
    """
    if address.startswith(_PLAIN) and find_spec("psycopg2") is None and find_spec("psycopg") is not None:
        return f"postgresql+psycopg://{address.removeprefix(_PLAIN)}"
    return address
