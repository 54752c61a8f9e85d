"""What the comparison of tools has measured so far, kept on disk, so that it can go on where it was stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import Self

from runners.measure.speed_comparison import compare_speeds
from runners.measure.spread import Center
from search_spaces.whole_file import write_whole


class OtherWorkError(Exception):
    """The file holds another comparison: another model, machine or version of torch."""


class Peak(BaseModel):
    """Of one candidate; ``first_step_s`` includes compilation, unless the compiler's cache on disk held the code."""

    model_config = ConfigDict(frozen=True)

    peak_bytes: int
    first_step_s: float


class SearchNote(BaseModel):
    """One of our studies; ``time_s`` is the wall time of all calls of `tune run` for it."""

    time_s: float = 0.0
    is_over: bool = False
    num_trials: int | None = None
    failure: str | None = None


class ToolRecord(BaseModel):
    """All that was measured.

    Attributes:
        identity: What figures of two processes must share to stand in one table.
        peaks: By candidate, in the order in which they were measured.
        rounds: Of each complete round the wall time of each candidate's step, and the processor seconds over it.
        failures: By candidate, one line.
        astray: By candidate that trains another model: how far its gradients are off, relative to what they should be.
        searches: By name of the study.
        took_s: Wall time of all calls together.
    """

    identity: dict[str, Any]
    peaks: dict[str, Peak] = Field(default_factory=dict)
    rounds: list[dict[str, tuple[float, float]]] = Field(default_factory=list)
    failures: dict[str, str] = Field(default_factory=dict)
    astray: dict[str, float] = Field(default_factory=dict)
    searches: dict[str, SearchNote] = Field(default_factory=dict)
    took_s: float = 0.0

    @classmethod
    def opened(cls, path: Path, identity: dict[str, Any]) -> Self:
        """What the file holds, or an empty record where there is none.

        Raises:
            OtherWorkError: The file is of another work.
        """
        if not path.exists():
            return cls(identity=identity)
        record = cls.model_validate_json(path.read_text())
        if record.identity != json.loads(json.dumps(identity)):
            changed = sorted(key for key in identity if record.identity.get(key) != identity[key])
            raise OtherWorkError(
                f"{path} was begun with another {', '.join(changed)}; name another --folder, or remove this one"
            )
        return record

    def save(self, path: Path) -> None:
        os.makedirs(path.parent, exist_ok=True)
        write_whole(path, self.model_dump_json())

    def speed(self, name: str, other: str) -> Center:
        """How many times as fast one candidate's steps are as another's, from the rounds in which both took part."""
        both = [each for each in self.rounds if name in each and other in each]
        times = [[each[which][0] for each in both] for which in (name, other)]
        shares = [[each[which][1] for each in both] for which in (name, other)]
        return compare_speeds(*times, shares)
