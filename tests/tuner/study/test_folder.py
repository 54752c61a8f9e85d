from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tuner.study.folder import StudyBusyError, StudyFolder, StudyFolderError

HOLDER = """
import sys
from pathlib import Path
from tuner.study.folder import StudyFolder
with StudyFolder(Path(sys.argv[1]), "study").locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path, "study")


def test_nothing_is_created_before_it_is_needed(folder: StudyFolder) -> None:
    assert not folder.exists()
    folder.raise_if_busy()
    assert not folder.path.exists()


@pytest.mark.parametrize("name", ["search.yaml", "study.db"])
def test_a_study_has_begun_with_its_first_file(folder: StudyFolder, name: str) -> None:
    folder.path.mkdir()
    assert not folder.exists()
    (folder.path / name).touch()
    assert folder.exists()


def test_a_file_is_replaced_whole(folder: StudyFolder) -> None:
    folder.write(folder.results_file, "one")
    with folder.results_file.open() as reader:
        folder.write(folder.results_file, "two and more")
        assert reader.read() == "one"
    assert folder.results_file.read_text() == "two and more"
    assert [path.name for path in folder.path.iterdir()] == ["results.json"]


def test_a_file_that_is_not_there_can_be_removed(folder: StudyFolder) -> None:
    folder.write(folder.policy_file, "a policy")
    folder.remove(folder.policy_file)
    folder.remove(folder.policy_file)
    assert not folder.policy_file.exists()


def test_the_log_grows(folder: StudyFolder) -> None:
    folder.append_log("one\n")
    folder.append_log("two\n")
    assert folder.log_file.read_text() == "one\ntwo\n"


def test_the_lock_holds_while_its_process_lives_and_no_longer(folder: StudyFolder, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        message = rf"{folder.path} is in use by process {holder.pid}, which runs this study now; wait for it, stop it"
        with pytest.raises(StudyBusyError, match=message):
            folder.raise_if_busy()
        with pytest.raises(StudyBusyError, match=message), folder.locked():
            pass
        holder.kill()
        holder.wait()
    folder.raise_if_busy()
    with folder.locked():
        assert (folder.path / ".lock").read_text() == str(os.getpid())


def test_a_folder_with_nothing_but_the_lock_does_not_stay(folder: StudyFolder) -> None:
    with folder.locked():
        pass
    assert not folder.path.exists()


def test_a_folder_with_files_stays(folder: StudyFolder) -> None:
    with folder.locked():
        folder.write(folder.search_file, "a: 1")
    assert sorted(path.name for path in folder.path.iterdir()) == [".lock", "search.yaml"]


def test_a_folder_stays_when_its_lock_is_refused(folder: StudyFolder) -> None:
    with folder.locked():
        with pytest.raises(StudyBusyError, match="is in use by process"), folder.locked():
            pass
        assert folder.path.exists()


def test_a_lock_that_its_holder_removed_binds_nobody(folder: StudyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is opened, then its last holder removes it, then it is locked: that lock is on no file any more."""
    flock = fcntl.flock
    opened = 0

    def slow_flock(*arguments: object) -> None:
        nonlocal opened
        opened += 1
        if opened == 1:
            (folder.path / ".lock").unlink()
        flock(*arguments)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(fcntl, "flock", slow_flock)
    with folder.locked():
        assert opened == 2
        assert (folder.path / ".lock").read_text() == str(os.getpid())


def lock(folder: StudyFolder) -> None:
    with folder.locked():
        pass


ACTIONS: dict[str, Callable[[StudyFolder], None]] = {
    "write": lambda folder: folder.write(folder.results_file, "text"),
    "log": lambda folder: folder.append_log("text"),
    "lock": lock,
}


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, action: Callable[[StudyFolder], None]) -> None:
    (tmp_path / "file").touch()
    folder = StudyFolder(tmp_path / "file", "study")
    with pytest.raises(StudyFolderError, match=r"file/study cannot be written \(Not a directory\); make room or"):
        action(folder)


@pytest.mark.parametrize("name", ["results.json", "policy.yaml", "trials.log", ".lock", "study.db"])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    folder = StudyFolder(tmp_path / "runs", "one")
    folder.path.mkdir(parents=True)
    (folder.path / name).symlink_to(precious)
    with pytest.raises(StudyFolderError, match=rf"one/{name} is a symbolic link to .*precious.*; remove it, or name"):
        folder.write(folder.results_file, "{}")
    with pytest.raises(StudyFolderError, match="is a symbolic link"):
        folder.append_log("a line")
    with pytest.raises(StudyFolderError, match="is a symbolic link"), folder.locked():
        pass
    assert precious.read_text() == "as it was"
    assert list(folder.path.iterdir()) == [folder.path / name]


def test_a_study_does_not_leave_the_output_folder_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "one").symlink_to(tmp_path / "elsewhere")
    folder = StudyFolder(tmp_path / "runs", "one")
    with pytest.raises(StudyFolderError, match=r"runs/one is a symbolic link to .*elsewhere, and studies write to no"):
        folder.write(folder.results_file, "{}")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_output_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "elsewhere")
    folder = StudyFolder(tmp_path / "runs", "one")
    folder.write(folder.results_file, "{}")
    assert (tmp_path / "elsewhere" / "one" / "results.json").read_text() == "{}"
