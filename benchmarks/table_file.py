"""Files that hold a table of measured policies: a study's results.json, and a short format. Read strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runners.trial import TrialStatus
from search_spaces.choices import SearchChoices, every_micro_batch_size
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.policy import MAX_BLOCKS, BlockListPlacement, PolicyError, RecomputePolicy
from search_spaces.policy_reader import policy_from_dict
from search_spaces.registry import make_space
from search_spaces.yaml_words import one_line, place_name
from tuner.config import MAX_GLOBAL_BATCH_SIZE
from tuner.user_error import UserError

#: How trials end that say nothing about their policy.
_SAYS_NOTHING = (TrialStatus.CANCELLED, TrialStatus.NODE_LOST, TrialStatus.TIMED_OUT)


class TableError(UserError):
    """A file that is no table to search on; the message is one line for the user."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, protected_namespaces=())


class BlockListEntry(_Record):
    """One list of blocks, as in results.json."""

    path: str
    num_blocks: int = Field(ge=1, le=MAX_BLOCKS)
    kind: str = "Block"
    units: dict[str, str] = {}
    aliases: list[list[int]] = []
    segment_refusal: str | None = None


class Row(_Record):
    """One measured policy, as a trial of results.json."""

    policy: dict[str, Any]
    status: TrialStatus = TrialStatus.COMPLETED
    reason: str | None = None
    step_time_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    step_time_spread_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    relative_speed: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    relative_speed_spread: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    recomputed_flops_ratio: float | None = None
    peak_memory_bytes: int | None = Field(default=None, gt=0, lt=2**63)
    predicted_peak_memory_bytes: int | None = Field(default=None, gt=0, lt=2**63)


class TableFile(_Record):
    """The short format. What is left out of it is filled in from the rows."""

    memory_cap_bytes: int = Field(gt=0, lt=2**63)
    global_batch_size: int = Field(ge=1, le=MAX_GLOBAL_BATCH_SIZE)
    actions: list[str]
    block_lists: list[BlockListEntry] = Field(min_length=1)
    rows: list[Row] = Field(min_length=1)
    micro_batch_sizes: list[int] | None = None
    segment_sizes: list[int] | None = None
    preserve_rng_state: bool | Literal["search"] = True
    data_parallel_degree: int = Field(default=1, ge=1)
    device: str | None = None


class _Batch(_Record):
    global_batch_size: int = Field(ge=1, le=MAX_GLOBAL_BATCH_SIZE)
    micro_batch_sizes: list[int] | Literal["auto"]


class _Placement(_Record):
    actions: list[str]
    segment_sizes: list[int] | Literal["auto"]
    preserve_rng_state: bool | Literal["search"]


class _Runner(_Record):
    data_parallel_degree: int = Field(ge=1)


class _Search(_Record):
    batch: _Batch
    placement: _Placement
    runner: _Runner


class _Model(_Record):
    block_lists: list[BlockListEntry] = Field(min_length=1)


class StudyFile(_Record):
    """What is read of a study's results.json; everything else in it is passed over."""

    memory_cap_bytes: int = Field(gt=0, lt=2**63)
    search: _Search
    environment: dict[str, Any] = {}
    model: _Model
    trials: list[Row] = Field(min_length=1)

    def as_table(self) -> TableFile:
        batch, placement = self.search.batch, self.search.placement
        degree = self.search.runner.data_parallel_degree
        every_size = every_micro_batch_size(batch.global_batch_size, data_parallel_degree=degree)
        return TableFile(
            memory_cap_bytes=self.memory_cap_bytes,
            global_batch_size=batch.global_batch_size,
            micro_batch_sizes=list(every_size) if batch.micro_batch_sizes == "auto" else batch.micro_batch_sizes,
            actions=placement.actions,
            segment_sizes=None if placement.segment_sizes == "auto" else placement.segment_sizes,
            preserve_rng_state=placement.preserve_rng_state,
            data_parallel_degree=degree,
            block_lists=self.model.block_lists,
            rows=self.trials,
            device=str(self.environment.get("device", "")) or None,
        )


@dataclass(frozen=True)
class Table:
    """What a file holds, checked.

    Attributes:
        path: Of the file.
        rows: By canonical policy of the search.
        device: What it was measured on; None where the file does not say.
    """

    path: Path
    choices: SearchChoices
    rows: Mapping[RecomputePolicy, Row]
    cap_bytes: int
    device: str | None

    @property
    def name(self) -> str:
        """Of the file, or of the folder of a results.json."""
        return self.path.parent.name if self.path.name == "results.json" else self.path.stem


def read_table(path: Path, *, cap_bytes: int | None = None) -> Table:
    """Reads a study's results.json, or a file in the short format.

    Args:
        cap_bytes: In place of the file's own cap.

    Raises:
        TableError: It is neither.
    """
    file = _read_file(path)
    choices = _choices(path, file)
    rows = _rows_by_policy(path, file, choices)
    return Table(path, choices, rows, cap_bytes or file.memory_cap_bytes, file.device)


def _read_file(path: Path) -> TableFile:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise TableError(f"{path} does not exist; name a study's results.json or a table like it") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise TableError(f"{path} cannot be read ({reason}); name a study's results.json or a table like it") from error
    except json.JSONDecodeError as error:
        raise TableError(
            f"{path}: line {error.lineno} is no JSON ({error.msg}); name a study's results.json or a table like it"
        ) from error
    except (RecursionError, ValueError) as error:
        # Python's own limits on nesting and on digits of a number.
        raise TableError(
            f"{path} is no JSON that can be read ({error}); name a study's results.json or a table like it"
        ) from error
    known = [kind for kind in ("trials", "rows") if isinstance(data, dict) and kind in data]
    if not known:
        found = f"a mapping of {', '.join(list(data)[:5]) or 'nothing'}" if isinstance(data, dict) else _kind(data)
        raise TableError(
            f"{path} holds {found}; allowed are a study's results.json (with `trials`) and the short format (with "
            "`rows`); name one of these"
        )
    try:
        return StudyFile.model_validate(data).as_table() if "trials" in known else TableFile.model_validate(data)
    except ValidationError as error:
        raise TableError(_first_error(path, error)) from error


def _first_error(path: Path, error: ValidationError) -> str:
    first = error.errors()[0]
    parts = (f"[{part}]" if isinstance(part, int) else f".{place_name(part)}" for part in first["loc"])
    where = "".join(parts).lstrip(".")
    read = "missing" if first["type"] == "missing" else _shown(first["input"])
    allowed = " ".join(first["msg"].split())
    return f"{path}: {where} is {read}; allowed: {allowed}; correct the file"


def _choices(path: Path, file: TableFile) -> SearchChoices:
    lists = tuple(
        BlockList(
            path=entry.path,
            kind=entry.kind,
            num_blocks=entry.num_blocks,
            units=tuple(sorted(entry.units.items())),
            aliases=tuple(tuple(group) for group in entry.aliases),
            segment_refusal=entry.segment_refusal,
        )
        for entry in file.block_lists
    )
    sizes = file.micro_batch_sizes or sorted({_batch_size(path, index, row) for index, row in enumerate(file.rows)})
    try:
        choices = SearchChoices(
            shape=ModelShape(0, lists),
            global_batch_size=file.global_batch_size,
            micro_batch_sizes=tuple(sizes),
            actions=tuple(file.actions),
            segment_sizes=None if file.segment_sizes is None else tuple(file.segment_sizes),
            preserve_rng_state=file.preserve_rng_state,
            data_parallel_degree=file.data_parallel_degree,
        )
    except ValueError as error:
        raise TableError(f"{path}: {one_line(str(error))}; correct the file") from error
    return choices


def _batch_size(path: Path, index: int, row: Row) -> int:
    return _policy_of(path, index, row).batch.micro_batch_size


def _policy_of(path: Path, index: int, row: Row) -> RecomputePolicy:
    try:
        return policy_from_dict(row.policy)
    except PolicyError as error:
        raise TableError(f"{path}: policy of row {index}: {one_line(str(error))}; correct the file") from error


def _rows_by_policy(path: Path, file: TableFile, choices: SearchChoices) -> dict[RecomputePolicy, Row]:
    """Rows that say something, by canonical policy; of several with one policy the last that completed."""
    space = make_space("two_action", choices)
    rows: dict[RecomputePolicy, Row] = {}
    for index, row in enumerate(file.rows):
        if row.status in _SAYS_NOTHING:
            continue
        try:
            policy = space.decode(space.encode(_spelled_out(_policy_of(path, index, row), choices)))
        except ValueError as error:
            raise TableError(
                f"{path}: policy of row {index} is none of this search: {one_line(str(error))}; correct the file"
            ) from error
        if row.status is TrialStatus.COMPLETED and (row.peak_memory_bytes is None or row.step_time_s is None):
            missing = "peak_memory_bytes" if row.peak_memory_bytes is None else "step_time_s"
            raise TableError(
                f"{path}: {missing} of row {index} is missing; allowed: a number above 0, or another status than "
                f"{TrialStatus.COMPLETED.value}; correct the file"
            )
        if policy not in rows or row.status is TrialStatus.COMPLETED:
            rows[policy] = row
    return rows


def _spelled_out(policy: RecomputePolicy, choices: SearchChoices) -> RecomputePolicy:
    """The policy with every list and all units, which a hand-written one may leave out where they change nothing."""
    by_path = {placement.blocks: placement for placement in policy.placement}
    known = {blocks.path for blocks in choices.shape.block_lists}
    spelled = [placement for placement in policy.placement if placement.blocks not in known]
    for blocks in choices.shape.block_lists:
        own = by_path.get(blocks.path)
        if own is None:
            spelled.append(BlockListPlacement(blocks.path, blocks.num_blocks, blocks.units))
        else:
            units = own.units if own.canonical().regions and own.units else blocks.units
            spelled.append(BlockListPlacement(own.blocks, own.num_blocks, units, own.regions))
    return replace(policy, placement=tuple(spelled), measured=None)


def _kind(value: object) -> str:
    return f"a {type(value).__name__}"


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
