"""The user's own code as one small archive that goes to every node: packed by the driver, unpacked beside trials."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runners.base import RunnerError

#: More than that is no code: data and model checkpoints reach nodes by a shared file system, not through the driver.
MAX_CODE_BYTES = 50 * 2**20
#: Folders that hold no code of the user's, besides hidden ones and virtual environments.
_SKIPPED_FOLDERS = ("__pycache__", "node_modules")
_NAMED_FILES = 3


@dataclass(frozen=True)
class CodePackage:
    """Files of one folder.

    Attributes:
        folder: Where they are on the driver's machine.
        left_out: Files and folders below it that are no part of it.
        digest: Of names and contents: packages of equal files have equal ones.
    """

    folder: str
    left_out: tuple[str, ...]
    digest: str
    num_bytes: int
    archive: bytes


def pack_code(folder: Path, *, leave_out: Sequence[Path] = ()) -> CodePackage:
    """All files below the folder, without hidden ones, virtual environments and what is left out.

    Raises:
        RunnerError: They are more than `MAX_CODE_BYTES`, or one cannot be read; the message is one line for the user.
    """
    folder = folder.resolve()
    files = sorted(_code_files(folder, {path.resolve() for path in leave_out}))
    sizes = {file: file.stat().st_size for file in files}
    total = sum(sizes.values())
    if total > MAX_CODE_BYTES:
        largest = sorted(files, key=lambda file: -sizes[file])[:_NAMED_FILES]
        named = ", ".join(f"{file.relative_to(folder)} {_mib(sizes[file])}" for file in largest)
        raise RunnerError(
            f"runner.ship_code: the folder of the search file, {folder}, holds {_mib(total)} (largest: {named}), but "
            f"{_mib(MAX_CODE_BYTES)} at most are sent to the nodes; keep search.yaml and the model's code in a folder "
            "of their own, or set runner.ship_code: false where every node has the folder at this path"
        )
    digest = hashlib.sha256()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            name = file.relative_to(folder).as_posix()
            content = _read(file)
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    left_out = tuple(str(path.resolve()) for path in leave_out)
    return CodePackage(str(folder), left_out, digest.hexdigest(), total, buffer.getvalue())


def code_folder_here(package: CodePackage) -> Path:
    """A folder on this machine with the package's files: the same one where this machine has it, else unpacked.

    Unpacked folders are kept among this user's temporary files. Each content has one that all studies use.

    Raises:
        RunnerError: What arrived is not what was sent.
    """
    if _holds(Path(package.folder), package, [Path(path) for path in package.left_out]):
        return Path(package.folder)
    root = Path(tempfile.gettempdir()) / f"recompute-tuner-code-{os.getuid()}"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    if root.stat().st_uid != os.getuid():
        raise RunnerError(f"{root} belongs to another user, so no code is run from there; remove it")
    place = root / package.digest
    if not _holds(place, package):
        # Never into a folder that is there: trials may be running from it.
        scratch = Path(tempfile.mkdtemp(prefix=f"{package.digest}-", dir=root))
        write_code(package, scratch)
        if not _holds(scratch, package):
            raise RunnerError(f"the code of {package.folder} did not arrive as it was sent; start the study again")
        place = _renamed(scratch, place)
    return place


def write_code(package: CodePackage, folder: Path) -> None:
    """Writes the package's files into a folder that exists."""
    with zipfile.ZipFile(io.BytesIO(package.archive)) as archive:
        archive.extractall(folder)


def _renamed(scratch: Path, place: Path) -> Path:
    try:
        return scratch.rename(place)
    except OSError:  # The name is taken: another process was first, or what is there has been changed.
        return scratch


def _holds(folder: Path, package: CodePackage, leave_out: Sequence[Path] = ()) -> bool:
    if not folder.is_dir():
        return False
    try:
        return pack_code(folder, leave_out=leave_out).digest == package.digest
    except RunnerError:
        return False


def _code_files(folder: Path, leave_out: set[Path]) -> Iterator[Path]:
    for path, folders, names in os.walk(folder):
        here = Path(path)
        folders[:] = [name for name in folders if not _is_skipped(here / name, leave_out)]
        for name in names:
            file = here / name
            if not name.startswith(".") and file.resolve() not in leave_out and file.is_file():
                yield file


def _is_skipped(folder: Path, leave_out: set[Path]) -> bool:
    return (
        folder.name.startswith(".")
        or folder.name in _SKIPPED_FOLDERS
        or folder.resolve() in leave_out
        or (folder / "pyvenv.cfg").exists()
    )


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise RunnerError(
            f"runner.ship_code: {file} cannot be read ({error.strerror}), but the folder of the search file is sent to "
            "the nodes; make it readable or move it elsewhere"
        ) from error


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"
