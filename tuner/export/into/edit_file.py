"""`--into FILE`: the user's own file with a policy in it, the old one kept beside, or only the difference shown."""

from __future__ import annotations

import difflib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from search_spaces.policy import RecomputePolicy
from search_spaces.whole_file import write_whole
from tuner.export.base import ExportContext, Exporter, ExportError
from tuner.export.command_line import CommandLine
from tuner.export.forms import depends_on_position, layout_of
from tuner.export.into.change_plan import value_at, with_settings
from tuner.export.into.config_text import ConfigFormat, UneditableError
from tuner.export.into.json_config import JsonConfig
from tuner.export.into.shell_script import argument_of, with_arguments
from tuner.export.into.toml_config import TomlConfig
from tuner.export.into.yaml_config import YamlConfig

_CONFIGS: Mapping[str, ConfigFormat] = {
    ".yaml": YamlConfig(),
    ".yml": YamlConfig(),
    ".json": JsonConfig(),
    ".toml": TomlConfig(),
}
_SHELL = (".sh", ".bash", ".slurm", ".sbatch")
_MAX_BYTES = 4 << 20
#: What some editors write before the first line; it stays there.
_BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True)
class FileEdit:
    """A file before and after; nothing is written yet.

    Attributes:
        path: As the user wrote it.
        target: The file itself, links followed.
        section: The key below which the settings stand, dotted; empty at the top.
    """

    path: Path
    target: Path
    before: bytes
    after: bytes
    section: str = ""

    @property
    def changes(self) -> bool:
        """Whether there is anything to change."""
        return self.before != self.after

    def diff(self) -> list[str]:
        """A unified diff, a line each without line breaks; empty where nothing changes."""
        old, new = _lines(self.before), _lines(self.after)
        return list(difflib.unified_diff(old, new, str(self.path), str(self.path), lineterm=""))


def plan_edit(path: Path, exporter: Exporter, policy: RecomputePolicy, context: ExportContext) -> FileEdit:
    """What the file becomes with the policy in it.

    Raises:
        ExportError: The file cannot be read, is not understood, or the stack has no such file.
    """
    settings = dict(exporter.settings(policy, context))
    if not settings:
        raise ExportError(_no_settings(path, exporter, policy, context))
    target = Path(os.path.realpath(path))
    before = _content(path, target)
    try:
        text = before.decode("utf-8")
        mark = _BYTE_ORDER_MARK if text.startswith(_BYTE_ORDER_MARK) else ""
        text = text.removeprefix(mark)
        kind = _kind_of(path, text, context)
        after, section = kind.edited(text, settings, exporter.obsolete_keys(context))
        _refuse_other_stages(kind, text, section, policy, context)
    except UnicodeDecodeError as error:
        raise ExportError(f"--into is {path}, which is not UTF-8 text; save it as UTF-8") from error
    except UneditableError as error:
        where = path if error.line is None else f"{path}:{error.line}"
        raise ExportError(f"--into {where}: {error.text}; the file is unchanged") from error
    except RecursionError as error:
        raise ExportError(
            f"--into is {path}, which is nested too deeply to be read; set the keys by hand; the file is unchanged"
        ) from error
    return FileEdit(path, target, before, (mark + after).encode("utf-8"), section)


def write_edit(edit: FileEdit) -> Path:
    """Writes the file and gives back where the old one is kept: ``FILE.bak``, or the first free ``FILE.bak.N``.

    Raises:
        ExportError: One of the two cannot be written; the file is left as it was.
    """
    try:
        backup = _backup(edit)
        mode = os.stat(edit.target).st_mode
        write_whole(edit.target, edit.after)
        os.chmod(edit.target, mode & 0o7777)
    except OSError as error:
        raise ExportError(
            f"--into is {edit.path}, which cannot be written: {error.strerror}; name another file"
        ) from error
    return backup


class _Text(Protocol):
    """A kind of file that can be edited."""

    def edited(self, text: str, settings: Mapping[str, object], obsolete: tuple[str, ...]) -> tuple[str, str]:
        """The new text, and the key below which the settings stand."""

    def says_one(self, text: str, section: str, key: str) -> bool:
        """Whether a key is absent or 1."""


@dataclass(frozen=True)
class _Keyed:
    form: ConfigFormat

    def edited(self, text: str, settings: Mapping[str, object], obsolete: tuple[str, ...]) -> tuple[str, str]:
        after, section = with_settings(self.form, text, settings, obsolete)
        return after, ".".join(section)

    def says_one(self, text: str, section: str, key: str) -> bool:
        path = tuple(f"{section}.{key}".strip(".").split("."))
        return value_at(self.form, text, path) in (None, self.form.plain(1))


@dataclass(frozen=True)
class _Script:
    line: CommandLine

    def edited(self, text: str, settings: Mapping[str, object], obsolete: tuple[str, ...]) -> tuple[str, str]:
        return with_arguments(text, self.line, settings, obsolete), ""

    def says_one(self, text: str, section: str, key: str) -> bool:
        return argument_of(text, self.line, key) in (None, "1")


def _kind_of(path: Path, text: str, context: ExportContext) -> _Text:
    suffix = path.suffix.lower()
    if suffix in _CONFIGS:
        return _Keyed(_CONFIGS[suffix])
    if suffix in _SHELL or text.startswith(("#!/bin/bash", "#!/usr/bin/env bash", "#!/bin/sh")):
        if context.version.command_line is None:
            raise ExportError(
                f"--into is {path}, a shell script, but {context.version.covers} is not set by arguments; "
                "name its config file"
            )
        return _Script(context.version.command_line)
    known = ", ".join((*_CONFIGS, *_SHELL))
    raise ExportError(f"--into is {path}; files that can be edited end in {known}; rename it or use --output")


def _refuse_other_stages(kind: _Text, text: str, section: str, policy: RecomputePolicy, context: ExportContext) -> None:
    """With several pipeline stages the same words place recompute on other blocks than those that were measured."""
    key = context.version.pipeline_key
    if key is None or not depends_on_position(layout_of(policy, context.block_lists)):
        return
    if not kind.says_one(text, section, key):
        raise UneditableError(
            None,
            f"sets {key} to something else than 1, so that blocks are counted anew in each stage, and "
            f"{policy.summary()} would be another placement; name a trial that treats all blocks alike",
        )


def _content(path: Path, target: Path) -> bytes:
    try:
        if target.exists() and not target.is_file():
            raise OSError(0, "it is no file")
        mode = os.stat(target).st_mode
        with open(target, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ExportError(
            f"--into is {path}, which cannot be read: {error.strerror}; name a config or launch script"
        ) from error
    if not mode & 0o222 or not os.access(target, os.W_OK):
        raise ExportError(f"--into is {path}, which is read-only; make it writable or copy it")
    if len(content) > _MAX_BYTES:
        raise ExportError(f"--into is {path}, which is larger than {_MAX_BYTES} bytes; name a config or launch script")
    return content


def _no_settings(path: Path, exporter: Exporter, policy: RecomputePolicy, context: ExportContext) -> str:
    others = [
        version.name
        for version in exporter.versions
        if exporter.settings(policy, ExportContext(version, context.block_lists))
    ]
    way = f"--stack-version {' or '.join(others)} has keys" if others else "export it with --output and include that"
    return f"--into is {path}, but {context.version.covers} takes a file of its own and has no keys to set; {way}"


def _backup(edit: FileEdit) -> Path:
    number = 0
    while True:
        name = f"{edit.target.name}.bak" + (f".{number}" if number else "")
        backup = edit.target.with_name(name)
        try:
            with open(backup, "xb") as file:
                file.write(edit.before)
        except FileExistsError:
            number += 1
            continue
        shutil.copystat(edit.target, backup)
        return backup


def _lines(content: bytes) -> list[str]:
    lines = content.decode("utf-8").split("\n")
    if lines[-1]:
        lines[-1] += "  (no line break at the end)"
    else:
        lines.pop()
    return [line.rstrip("\r") for line in lines]
