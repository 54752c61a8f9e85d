"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Puts content in a file under a temporary name beside it, then gives it its name.

    Readers see the old file or the new one. Text is written as UTF-8, permissions follow the user's umask, and a
    symbolic link keeps pointing to its file.

    Raises:
        OSError: The folder is missing or cannot be written to, or the disk is full; the old file is left as it was.
    """
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
