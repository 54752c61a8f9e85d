"""Settings of a stack that takes them as arguments of a command, or as YAML, whichever the version reads."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.export.command_line import CommandLine
from tuner.export.yaml_block import dump_yaml_block


def settings_text(settings: Mapping[str, object], command_line: CommandLine | None) -> str:
    """YAML, or for a command line a shell array, which a launch script passes on as ``"${RECOMPUTE_ARGS[@]}"``."""
    if command_line is None:
        return dump_yaml_block(settings)
    arguments = "".join(f"    {argument}\n" for argument in command_line.arguments(settings))
    return f"RECOMPUTE_ARGS=(\n{arguments})\n"
