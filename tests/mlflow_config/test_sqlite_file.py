from __future__ import annotations

from pathlib import Path

from mlflow_config.sqlite_file import is_on_local_disk


def test_what_is_no_disk_of_this_machine_gets_no_write_ahead_log() -> None:
    assert not is_on_local_disk(Path("/proc/self"))


def test_a_folder_that_is_yet_to_come_counts_as_the_one_it_will_be_in(tmp_path: Path) -> None:
    assert is_on_local_disk(tmp_path / "a" / "b") == is_on_local_disk(tmp_path)
