"""What a SQLite file may rely on where it lies: which file systems are this machine's own, which are a network's."""

from __future__ import annotations

from pathlib import Path

#: File systems on which SQLite's write-ahead log may be used; across machines it must not be.
_LOCAL_FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay", "tmpfs"})
#: File systems that several machines share, on which locks come late, fail, or hold for one machine only. What is in
#: neither set is not known: it gets no write-ahead log, and no warning.
_NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs"),
        *("fuse.ceph", "fuse.glusterfs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.juicefs"),
    }
)
#: The system's table of file systems.
SYSTEM_MOUNTS = Path("/proc/self/mounts")


def is_on_local_disk(folder: Path) -> bool:
    """True only where the system says so; everywhere else SQLite's slower mode is the safe one."""
    return _file_system(folder, SYSTEM_MOUNTS) in _LOCAL_FILE_SYSTEMS


def network_file_system(folder: Path, mounts: Path = SYSTEM_MOUNTS) -> str | None:
    """The network file system that a folder is on, by its kind (``nfs4``); None where it is on none that is known."""
    kind = _file_system(folder, mounts)
    return kind if kind in _NETWORK_FILE_SYSTEMS else None


def _file_system(folder: Path, mounts: Path) -> str | None:
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    kinds = {fields[1]: fields[2] for fields in (line.split() for line in lines)}
    inside = [str(parent) for parent in (folder.resolve(), *folder.resolve().parents) if str(parent) in kinds]
    return kinds[inside[0]] if inside else None
