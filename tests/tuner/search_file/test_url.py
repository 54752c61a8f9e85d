from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.search_file.url import check_ray_address, check_study_store, check_tracking_store, redact_url

_SECRETS = st.from_regex(r"[A-Za-z0-9:@/?#!$%&*+=. -]{1,20}", fullmatch=True)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://user:pw@host:5432/db", "postgresql://***@host:5432/db"),
        ("postgresql+psycopg2://user:p@ss@host/db", "postgresql+psycopg2://***@host/db"),
        ("postgresql://user:p/w@host/db", "postgresql://***@host/db"),
        ("postgresql://user:p?w@host/db", "postgresql://***@host/db"),
        ("https://token@host/path", "https://***@host/path"),
        (
            "postgresql://host/db?user=u&password=pw&sslmode=require",
            "postgresql://host/db?user=***&password=***&sslmode=require",
        ),
        ("https://host/?access_token=abc", "https://host/?access_token=***"),
        ("https://host/?apiKey=abc#x", "https://host/?apiKey=***"),
        ("user:pw@host/db", "***@host/db"),
        ("sqlite:////home/me@work/study.db", "sqlite:////home/me@work/study.db"),
        ("sqlite:///study.db", "sqlite:///study.db"),
        ("http://localhost:5000", "http://localhost:5000"),
        ("postgresql://host/db", "postgresql://host/db"),
        ("", ""),
    ],
)
def test_credentials_are_hidden_and_nothing_else(url: str, shown: str) -> None:
    assert redact_url(url) == shown
    assert redact_url(shown) == shown


@settings(max_examples=500, deadline=None, derandomize=True)
@given(_SECRETS, _SECRETS)
def test_no_password_survives(user: str, password: str) -> None:
    shown = redact_url(f"postgresql://{user}:<{password}>@host/db")
    assert shown == "postgresql://***@host/db"


@pytest.mark.parametrize(
    "url", ["sqlite:///study.db", "sqlite:////abs/a study.db", "postgresql://u:p@h/db", "postgresql+psycopg2://h/db"]
)
def test_study_stores_that_optuna_can_use_are_accepted(url: str) -> None:
    assert check_study_store(url) == url


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "study.db",
            r"is 'study\.db'; allowed: sqlite:///FILE or postgresql://HOST/DATABASE; write sqlite:///study\.db if",
        ),
        ("mysql://u:secret@h/db", r"is 'mysql://\*\*\*@h/db'; allowed"),
        ("u:secret@h/db", r"is '\*\*\*@h/db'; allowed"),
        ("postgres://u:secret@h/db", r"is 'postgres://\*\*\*@h/db'; allowed"),
        ("sqlite://study.db", r"where a slash is missing; .*write three slashes"),
        ("sqlite://", r"is 'sqlite://'; allowed"),
        ("sqlite:///", r"is gone when the program ends"),
        ("sqlite:///:memory:", r"is gone when the program ends"),
        ("sqlite:/// a\n.db", r"is 'sqlite:/// a.n\.db'; allowed"),
        ("", r"is ''; allowed.*; leave it out"),
    ],
)
def test_other_study_stores_are_refused_without_credentials(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        check_study_store(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    [
        "sqlite:///mlflow.db",
        "http://127.0.0.1:5000",
        "https://u:p@host/x",
        "postgresql://h/d",
        "mysql+pymysql://h/d",
        "mssql://h/d",
    ],
)
def test_tracking_stores_that_mlflow_can_use_are_accepted(uri: str) -> None:
    assert check_tracking_store(uri) == uri


@pytest.mark.parametrize(
    ("uri", "replacement"),
    [
        ("./mlruns", "sqlite:///mlflow.db"),
        ("mlruns", "sqlite:///mlflow.db"),
        ("results/mlruns/", "sqlite:///results/mlflow.db"),
        ("/data/mlruns", "sqlite:////data/mlflow.db"),
        ("file:/data/mlruns", "sqlite:////data/mlflow.db"),
        ("file:///data/mlruns", "sqlite:////data/mlflow.db"),
        ("file:./mlruns", "sqlite:///mlflow.db"),
        ("tracking.db", "sqlite:///tracking.db"),
        ("ftp://u:secret@host/x", "sqlite:///mlflow.db"),
        ("databricks", "sqlite:///mlflow.db"),
        ("", "sqlite:///mlflow.db"),
    ],
)
def test_file_stores_are_refused_with_their_replacement(uri: str, replacement: str) -> None:
    with pytest.raises(
        ValueError, match=r"MLflow keeps no new results in folders of files; allowed: a database"
    ) as caught:
        check_tracking_store(uri)
    assert f"write {replacement}, or leave it out" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["auto", "head:6379", "10.0.0.1:6379", "[::1]:6379", "ray://head.example:10001", "ray://u:p@head:10001"]
)
def test_addresses_that_ray_can_join_are_accepted(address: str) -> None:
    assert check_ray_address(address) == address


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        ("head", "leave it out for a private cluster"),
        # Ray would start a cluster of its own that anyone may use.
        ("local", "leave it out for a private cluster"),
        ("head:port", "leave it out for a private cluster"),
        ("head:0", "leave it out for a private cluster"),
        ("head:65536", "leave it out for a private cluster"),
        (":6379", "leave it out for a private cluster"),
        ("ray://", "leave it out for a private cluster"),
        ("ray://u:secret@head", "leave it out for a private cluster"),
        ("http://head:8265", "the address of a job server is for `tune submit --address`"),
    ],
)
def test_other_addresses_of_clusters_are_refused_without_credentials(address: str, advice: str) -> None:
    with pytest.raises(ValueError, match=r"^is '.*'; allowed: HOST:PORT such as .*, or auto for") as caught:
        check_ray_address(address)
    assert f"; {advice}" in str(caught.value)
    assert "secret" not in str(caught.value)
