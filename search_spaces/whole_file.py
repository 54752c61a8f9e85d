"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Puts content in a file under a temporary name beside it, then gives it its name.

    Readers see the old file or the new one. Text is written as UTF-8, permissions follow the user's umask, and a
    symbolic link keeps pointing to its file.

    Raises:
        OSError: The folder is missing or cannot be written to, the disk is full, or the name is that of a device, a
            pipe or a socket, which a new file would replace; what was there is left as it was.
    """
    _refuse_special(path)
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name[:100]}.{secrets.token_hex(6)}.tmp")
    data = content.encode("utf-8") if isinstance(content, str) else content
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def remove_leftovers(folder: str | os.PathLike[str]) -> None:
    """Removes what `write_whole` leaves in a folder when its process is killed; for whoever alone writes there."""
    for name in os.listdir(folder):
        if _TEMPORARY.fullmatch(name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))


def _refuse_special(path: str | os.PathLike[str]) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a device, a pipe or a socket, not a regular file", os.fspath(path))
