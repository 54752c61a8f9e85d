from __future__ import annotations

import importlib.machinery

import pytest

from mlflow_config import database_driver
from mlflow_config.database_driver import with_installed_driver


@pytest.mark.parametrize(
    "installed, expected",
    [
        (("psycopg",), "postgresql+psycopg://me:word@host/x"),
        (("psycopg", "psycopg2"), "postgresql://me:word@host/x"),
        (("psycopg2",), "postgresql://me:word@host/x"),
        ((), "postgresql://me:word@host/x"),
    ],
    ids=["psycopg", "both", "psycopg2", "none"],
)
def test_a_plain_address_names_what_is_installed(
    monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], expected: str
) -> None:
    def find_spec(name: str) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, None) if name in installed else None

    monkeypatch.setattr(database_driver, "find_spec", find_spec)
    assert with_installed_driver("postgresql://me:word@host/x") == expected
    for other in ("postgresql+pg8000://host/x", "sqlite:///x.db", "https://mlflow.example"):
        assert with_installed_driver(other) == other
