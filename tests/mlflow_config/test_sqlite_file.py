from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_config.sqlite_file import is_on_local_disk, network_file_system


def test_what_is_no_disk_of_this_machine_gets_no_write_ahead_log() -> None:
    assert not is_on_local_disk(Path("/proc/self"))


def test_a_folder_that_is_yet_to_come_counts_as_the_one_it_will_be_in(tmp_path: Path) -> None:
    assert is_on_local_disk(tmp_path / "a" / "b") == is_on_local_disk(tmp_path)


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/ada/runs", "nfs4"),
        ("/data/team/runs", "lustre"),
        ("/data/own", None),
        ("/srv/x", None),
        ("/mnt/c", None),
    ],
)
def test_a_folder_is_on_the_innermost_file_system_around_it(tmp_path: Path, folder: str, kind: str | None) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda1 / ext4 rw,relatime 0 0\nfiler:/home /home nfs4 rw,vers=4.2 0 0\n/dev/sdb1 /data xfs rw 0 0\n"
        "mds@tcp:/fs /data/team lustre rw 0 0\nC: /mnt/c 9p rw 0 0\n"
    )
    assert network_file_system(Path(folder), mounts) == kind


def test_where_the_system_says_nothing_nothing_is_known(tmp_path: Path) -> None:
    assert network_file_system(tmp_path, tmp_path / "absent") is None
