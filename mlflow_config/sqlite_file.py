"""Where SQLite's write-ahead log may be used."""

from __future__ import annotations

from pathlib import Path

#: File systems on which SQLite's write-ahead log may be used; across machines it must not be.
_LOCAL_FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "tmpfs"})


def is_on_local_disk(folder: Path) -> bool:
    """True only where the system says so; everywhere else SQLite's slower mode is the safe one."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return False
    kinds = {fields[1]: fields[2] for fields in (line.split() for line in mounts)}
    inside = [str(parent) for parent in (folder.resolve(), *folder.resolve().parents) if str(parent) in kinds]
    return bool(inside) and kinds[inside[0]] in _LOCAL_FILE_SYSTEMS
