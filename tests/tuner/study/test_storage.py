from __future__ import annotations

import sqlite3
from pathlib import Path

import optuna
import pytest

from tuner.study.storage import StudyStorageError, study_storage


def open_study(named: str | None, database: Path = Path("runs/x/study.db")) -> None:
    storage = study_storage(named, database)
    with storage.errors():
        optuna.create_study(storage=storage.url, study_name="study")


def test_the_default_is_the_file_in_the_studys_folder(tmp_path: Path) -> None:
    open_study(None, tmp_path / "study.db")
    assert optuna.get_all_study_names(f"sqlite:///{tmp_path / 'study.db'}") == ["study"]


def test_a_file_that_is_no_database_is_named_without_talk_of_the_option(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(StudyStorageError, match=r"study\.db cannot be used: file is not a database; free space") as no:
        open_study(None, tmp_path / "study.db")
    assert "storage is" not in str(no.value)


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(StudyStorageError, match=r"storage is sqlite:.*x\.db, which cannot be used: unable to open"):
        open_study(f"sqlite:///{tmp_path}/missing/x.db")


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("create table studies (title text)")
    connection.close()
    with pytest.raises(StudyStorageError, match="table studies has no column named study_name"):
        open_study(f"sqlite:///{tmp_path / 'other.db'}")


@pytest.mark.parametrize(
    "url, reason",
    [
        ("postgresql+nosuch://me:s3cret@host/x", "Can't load plugin"),
        ("postgresql://me:s3cret@[host/x", "cannot be used"),
        ("sqlite+pysqlite_nosuch:///x?password=s3cret", "Can't load plugin"),
    ],
)
def test_an_address_that_makes_no_sense_is_one_line_without_credentials(url: str, reason: str) -> None:
    with pytest.raises(StudyStorageError, match=reason) as refusal:
        open_study(url)
    (line,) = refusal.value.lines
    assert "\n" not in line
    assert "s3cret" not in line


def test_other_errors_are_not_the_stores(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="a bug"), study_storage(None, tmp_path / "study.db").errors():
        raise ZeroDivisionError("a bug")
