"""How a stack spells its settings as arguments of a command: the same settings that its config files hold."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CommandLine:
    """One stack's spelling.

    Attributes:
        separator: Between the words of a flag; ``-`` writes ``micro_batch_size`` as ``--micro-batch-size``.
        booleans: ``switch`` gives the bare flag for true and nothing for false; ``word`` gives a word after the flag.
    """

    separator: Literal["-", "_"]
    booleans: Literal["switch", "word"]

    def flag(self, key: str) -> str:
        """``--micro-batch-size`` for ``micro_batch_size``."""
        return "--" + key.replace("_", self.separator)

    def words(self, value: object) -> tuple[str, ...] | None:
        """What follows the flag of a setting, unquoted; None where the flag must not be given at all."""
        if value is None or (value is False and self.booleans == "switch"):
            return None
        if value is True and self.booleans == "switch":
            return ()
        if isinstance(value, bool):
            return (str(value),)
        if isinstance(value, Mapping):
            return (json.dumps(value),)
        if isinstance(value, Sequence) and not isinstance(value, str):
            return tuple(map(str, value))
        return (str(value),)

    def arguments(self, settings: Mapping[str, object]) -> Iterator[str]:
        """Flags with their words, quoted for a shell; settings that must not be given are left out."""
        for key, value in settings.items():
            words = self.words(value)
            if words is not None:
                yield shlex.join((self.flag(key), *words))
