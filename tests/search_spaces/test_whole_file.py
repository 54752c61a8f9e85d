from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from search_spaces.whole_file import remove_leftovers, write_whole


def test_text_and_bytes_are_written_whole(tmp_path: Path) -> None:
    write_whole(tmp_path / "text", "caf\u00e9\n")
    write_whole(str(tmp_path / "bytes"), b"\x00\xff")
    assert (tmp_path / "text").read_bytes() == b"caf\xc3\xa9\n"
    assert (tmp_path / "bytes").read_bytes() == b"\x00\xff"
    assert sorted(os.listdir(tmp_path)) == ["bytes", "text"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_permissions_follow_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_whole(tmp_path / "file", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~umask


def test_a_symbolic_link_keeps_pointing_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    write_whole(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "file").read_text() == "x"


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
        write_whole(tmp_path / "file", "\ud800")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="folder"):
        write_whole(tmp_path / "folder", "new")
    assert (tmp_path / "file").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_missing_folder_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        write_whole(tmp_path / "nowhere" / "file", "x")


def test_a_long_name_leaves_room_for_the_temporary_one(tmp_path: Path) -> None:
    write_whole(tmp_path / ("x" * 250), "x")
    assert len(os.listdir(tmp_path)) == 1


@pytest.mark.parametrize("through_a_link", [False, True])
@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_what_is_no_regular_file_is_never_replaced(tmp_path: Path, kind: str, through_a_link: bool) -> None:
    special = tmp_path / "special"
    if kind == "pipe":
        os.mkfifo(special)
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.relpath(special))
    before = special.lstat()
    (tmp_path / "link").symlink_to(special)
    with pytest.raises(OSError, match="a pipe or a socket, not a regular file"):
        write_whole(tmp_path / "link" if through_a_link else special, "x")
    assert (special.lstat().st_mode, special.lstat().st_ino) == (before.st_mode, before.st_ino)
    assert sorted(os.listdir(tmp_path)) == ["link", "special"]


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    script = (
        "import os, signal; from search_spaces.whole_file import write_whole\n"
        "os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"write_whole({str(tmp_path / 'results.json')!r}, 'x')"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    (left,) = os.listdir(tmp_path)
    assert left.endswith(".tmp")
    kept = [".lock", ".mine.tmp", "study.db", f"x{left}"]
    for name in kept:
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == kept
