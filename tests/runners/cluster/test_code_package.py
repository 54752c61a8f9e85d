from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from runners.base import RunnerError
from runners.cluster import code_package
from runners.cluster.code_package import code_folder_here, pack_code


@pytest.fixture(autouse=True)
def _own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    for name, text in {
        "model.py": "import part.layers\n",
        "part/layers.py": "x = 1\n",
        "part/table.json": "{}",
        ".git/config": "hidden",
        ".env": "PASSWORD=secret",
        "__pycache__/model.pyc": "cache",
        "venv/pyvenv.cfg": "home = /usr",
        "venv/lib/big.py": "no code of theirs",
        "runs/study/results.json": "{}",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def names(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def test_elsewhere_the_code_is_unpacked_without_what_is_no_code(code: Path, tmp_path: Path) -> None:
    package = pack_code(code, leave_out=[code / "runs"])
    code.rename(tmp_path / "moved")
    place = code_folder_here(package)
    assert names(place) == ["model.py", "part/layers.py", "part/table.json"]
    assert package.num_bytes == 27
    assert (place / "part/layers.py").read_text() == "x = 1\n"
    assert code_folder_here(package) == place


def test_where_the_folder_is_there_with_the_same_content_it_is_used_itself(code: Path, tmp_path: Path) -> None:
    package = pack_code(code, leave_out=[code / "runs"])
    assert code_folder_here(package) == code
    (code / "model.py").write_text("changed since")
    place = code_folder_here(package)
    assert (place / "model.py").read_text() == "import part.layers\n"


def test_unpacked_code_that_somebody_changed_is_not_run(code: Path, tmp_path: Path) -> None:
    package = pack_code(code, leave_out=[code / "runs"])
    code.rename(tmp_path / "moved")
    place = code_folder_here(package)
    (place / "model.py").write_text("changed")
    again = code_folder_here(package)
    assert again != place
    assert (again / "model.py").read_text() == "import part.layers\n"


def test_digest_follows_names_and_contents_and_nothing_else(code: Path) -> None:
    first = pack_code(code)
    (code / "model.py").touch()
    assert pack_code(code).digest == first.digest
    (code / "part/layers.py").rename(code / "part/other.py")
    assert pack_code(code).digest != first.digest


def test_folder_too_large_to_send_is_refused_with_its_largest_files(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_package, "MAX_CODE_BYTES", 2**20)
    with (code / "train.bin").open("wb") as file:
        file.truncate(3 * 2**20)
    with pytest.raises(
        RunnerError, match=r"ship_code: the folder .*code, holds 3\.0 MiB \(largest: train\.bin 3\.0 MiB"
    ):
        pack_code(code)
