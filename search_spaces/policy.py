"""The whole decision, as pure data: micro-batch and where each block recomputes. Knows no model, device or file."""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from search_spaces.actions import BLOCK as BLOCK
from search_spaces.actions import NONE as NONE
from search_spaces.actions import OFFLOAD as OFFLOAD
from search_spaces.actions import SEGMENT as SEGMENT
from search_spaces.actions import SELECTIVE as SELECTIVE
from search_spaces.actions import UNIT_JOINER as UNIT_JOINER
from search_spaces.actions import WHOLE_BLOCK_ACTIONS as WHOLE_BLOCK_ACTIONS
from search_spaces.actions import action_kind as action_kind
from search_spaces.actions import kept_by, shown_action, why_not_compiled
from search_spaces.actions import normal_action as normal_action
from search_spaces.actions import units_of as units_of
from search_spaces.kept_operators import normal_keep

SCHEMA_VERSION = 1
#: Of all lists of a policy together, several times what any model has: a file of one line must not take for ever.
MAX_BLOCKS = 10_000
#: What `torch.compile` may be applied to: every block by itself, or the whole model.
COMPILE_BLOCKS, COMPILE_MODEL = COMPILE_MODES = ("blocks", "model")


class PolicyError(ValueError):
    """A policy that contradicts itself or cannot be read; the message says where and what is allowed."""


@dataclass(frozen=True)
class BatchShape:
    """Samples per optimizer step and how they are divided.

    ``global_batch_size == micro_batch_size * gradient_accumulation_steps * data_parallel_degree`` always.
    """

    micro_batch_size: int
    gradient_accumulation_steps: int
    data_parallel_degree: int
    global_batch_size: int

    def __post_init__(self) -> None:
        for name in ("micro_batch_size", "gradient_accumulation_steps", "data_parallel_degree", "global_batch_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise PolicyError(f"batch.{name} is {value!r}; a whole number of at least 1 is allowed")
        product = self.micro_batch_size * self.gradient_accumulation_steps * self.data_parallel_degree
        if product != self.global_batch_size:
            raise PolicyError(
                f"batch.global_batch_size is {self.global_batch_size}, but micro_batch_size x "
                f"gradient_accumulation_steps x data_parallel_degree is {product}; the two must be equal"
            )

    @classmethod
    def split(cls, *, global_batch_size: int, micro_batch_size: int, data_parallel_degree: int = 1) -> BatchShape:
        """The shape that divides ``global_batch_size`` into micro-batches of the given size.

        Raises:
            PolicyError: The micro-batch does not divide the global batch exactly.
        """
        per_pass = micro_batch_size * data_parallel_degree
        if per_pass < 1 or global_batch_size % per_pass:
            raise PolicyError(
                f"micro_batch_size {micro_batch_size} x data_parallel_degree {data_parallel_degree} does not divide "
                f"global_batch_size {global_batch_size} exactly"
            )
        return cls(micro_batch_size, global_batch_size // per_pass, data_parallel_degree, global_batch_size)


@dataclass(frozen=True)
class Region:
    """Blocks ``first`` to ``last`` (both included) under one action; a segment also names its size in blocks."""

    first: int
    last: int
    action: str
    segment_size: int | None = None

    @property
    def num_blocks(self) -> int:
        return self.last - self.first + 1

    def segments(self) -> tuple[tuple[int, int], ...]:
        """First and last block of each recompute region of a segment action; the last one may be shorter."""
        if self.segment_size is None:
            raise PolicyError(f"region {self.first}-{self.last} has action {self.action}, which has no segments")
        starts = range(self.first, self.last + 1, self.segment_size)
        return tuple((start, min(start + self.segment_size - 1, self.last)) for start in starts)

    def unit_names(self) -> tuple[str, ...]:
        """The units this region recomputes, each a region of its own; empty for whole-block actions."""
        return units_of(self.action)

    @property
    def keep(self) -> tuple[str, ...]:
        """The operators whose outputs are kept; empty for every action but selective ones."""
        return kept_by(self.action)


@dataclass(frozen=True)
class BlockListPlacement:
    """What one list of blocks recomputes. Blocks that no region names keep everything."""

    blocks: str
    num_blocks: int
    units: tuple[tuple[str, str], ...] = ()
    regions: tuple[Region, ...] = ()

    def __post_init__(self) -> None:
        units = dict(self.units)
        where = f"placement of {self.blocks}"
        if not 1 <= self.num_blocks <= MAX_BLOCKS:
            raise PolicyError(f"{where}: num_blocks is {self.num_blocks}; from 1 to {MAX_BLOCKS} are allowed")
        for name in units:
            if not name or UNIT_JOINER in name or name in WHOLE_BLOCK_ACTIONS:
                raise PolicyError(
                    f"{where}: a unit is named {name!r}; any name but {', '.join(WHOLE_BLOCK_ACTIONS)}, without "
                    f"{UNIT_JOINER}, is allowed"
                )
        expected_first = 0
        for region in self.regions:
            span = f"{where}: region {region.first}-{region.last}"
            if not expected_first <= region.first <= region.last < self.num_blocks:
                raise PolicyError(
                    f"{span} is out of order or outside the list; regions run in order, disjoint, "
                    f"from {expected_first} to {self.num_blocks - 1}"
                )
            expected_first = region.last + 1
            if (region.action == SEGMENT) != (region.segment_size is not None):
                raise PolicyError(f"{span}: segment_size goes with action {SEGMENT} and with no other")
            if region.segment_size is not None and region.segment_size < 1:
                raise PolicyError(f"{span}: segment_size is {region.segment_size}; at least 1 is allowed")
            if action_kind(region.action) == SELECTIVE:
                check_keep(region.keep, span)
            unknown = [name for name in region.unit_names() if name not in units]
            if unknown:
                known = ", ".join([*WHOLE_BLOCK_ACTIONS, *units])
                raise PolicyError(f"{span}: action {region.action} names unit {unknown[0]!r}; known here: {known}")

    @property
    def unit_paths(self) -> dict[str, str]:
        return dict(self.units)

    def actions(self) -> tuple[str, ...]:
        """Action of each block, shape (num_blocks,); a segment's blocks read ``segment``."""
        actions = [NONE] * self.num_blocks
        for region in self.regions:
            actions[region.first : region.last + 1] = [region.action] * region.num_blocks
        return tuple(actions)

    def canonical(self) -> BlockListPlacement:
        """The same placement in its one normal form, so that equal placements compare equal."""
        return BlockListPlacement(self.blocks, self.num_blocks, tuple(sorted(self.units)), _normal(self.regions))


def check_keep(keep: tuple[str, ...], where: str) -> None:
    try:
        normal_keep(keep)
    except ValueError as error:
        raise PolicyError(f"{where}: keep: {error}") from error


# Whoever goes on with a study reads each of its policies several times: from Optuna, from results.json, for MLflow.
@functools.lru_cache(maxsize=1 << 14)
def _normal(regions: tuple[Region, ...]) -> tuple[Region, ...]:
    return tuple(_merged([cell for region in regions for cell in _cells(region)]))


def _cells(region: Region) -> list[Region]:
    """The region cut into what is recomputed at once: a segment, or a single block under any other action."""
    if region.action == NONE:
        return []
    if region.action == SEGMENT:
        return [_cell(first, last) for first, last in region.segments()]
    action = normal_action(region.action)
    return [Region(block, block, action) for block in range(region.first, region.last + 1)]


def _cell(first: int, last: int) -> Region:
    """One segment; a segment of one block is that block recomputed whole."""
    return Region(first, last, BLOCK) if first == last else Region(first, last, SEGMENT, last - first + 1)


def _merged(cells: list[Region]) -> Iterator[Region]:
    """The fewest regions with the same cells: runs of equal ones, a single shorter one closing a run of segments."""
    while cells:
        run = _run_length(cells)
        rest = cells[run:]
        after = rest[: _run_length(rest)]
        closes = cells[0].action == SEGMENT and len(after) == 1 and _is_shorter_neighbour(after[0], cells[run - 1])
        run += closes
        yield Region(cells[0].first, cells[run - 1].last, cells[0].action, cells[0].segment_size)
        cells = cells[run:]


def _run_length(cells: list[Region]) -> int:
    length = min(len(cells), 1)
    while length < len(cells) and _is_alike_neighbour(cells[length], cells[length - 1]):
        length += 1
    return length


def _is_alike_neighbour(cell: Region, before: Region) -> bool:
    alike = (cell.action, cell.num_blocks) == (before.action, before.num_blocks)
    return alike and cell.first == before.last + 1


def _is_shorter_neighbour(cell: Region, before: Region) -> bool:
    return cell.action in (BLOCK, SEGMENT) and cell.num_blocks < before.num_blocks and cell.first == before.last + 1


def _check_budget(budget: object, compiled: str | None) -> None:
    if budget is None:
        return
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 <= budget <= 1:
        raise PolicyError(f"compile_memory_budget is {budget!r}; a number from 0 to 1 is allowed")
    if compiled is None:
        raise PolicyError(
            f"compile_memory_budget is {budget!r}, but compile is left out; it goes with compile "
            f"{' or '.join(COMPILE_MODES)} only"
        )


def _refuse_uncompilable(placement: BlockListPlacement) -> None:
    for region in placement.regions:
        reason = why_not_compiled(region.action, placement.unit_paths)
        if reason is not None:
            raise PolicyError(
                f"placement of {placement.blocks}: region {region.first}-{region.last} has action "
                f"{action_kind(region.action)} in a compiled policy, but {reason}; leave compile out or name another "
                "action"
            )


@dataclass(frozen=True)
class RecomputePolicy:
    """Micro-batch and placement together: what a trial measures and what is exported.

    Attributes:
        compile: What `torch.compile` is applied to: ``blocks`` is each block of the lists that the placement names,
            ``model`` the whole model; None runs the model as it is.
        reshard_after_forward: What blocks that ``fully_shard`` divides do after forward: False keeps them whole until
            backward, None is torch's own way, which frees them and gathers them again. True says the same as None.
        compile_memory_budget: Share of the activations that the compiler may keep in each piece of code that it makes,
            0 to 1; it rebuilds the rest within that code. None leaves it at the compiler's default, which keeps all.
        measured: What a study wrote beside the policy; it is carried along and takes no part in equality.
    """

    batch: BatchShape
    placement: tuple[BlockListPlacement, ...] = ()
    preserve_rng_state: bool = True
    measured: Mapping[str, Any] | None = field(default=None, compare=False, hash=False)
    compile: str | None = None
    reshard_after_forward: bool | None = None
    compile_memory_budget: float | None = None

    def __post_init__(self) -> None:
        paths = [placement.blocks for placement in self.placement]
        if len(set(paths)) < len(paths):
            repeated = min(path for path, count in Counter(paths).items() if count > 1)
            raise PolicyError(f"placement names {repeated} twice; each list of blocks is placed once")
        num_blocks = sum(placement.num_blocks for placement in self.placement)
        if num_blocks > MAX_BLOCKS:
            raise PolicyError(f"placement has {num_blocks} blocks in all its lists; at most {MAX_BLOCKS} are allowed")
        if self.compile is not None and self.compile not in COMPILE_MODES:
            raise PolicyError(f"compile is {self.compile!r}; {' or '.join(COMPILE_MODES)} is allowed, or leave it out")
        if self.compile == COMPILE_BLOCKS and not self.placement:
            raise PolicyError("compile is blocks, but placement names no list of blocks; name each that is compiled")
        _check_budget(self.compile_memory_budget, self.compile)
        for placement in self.placement if self.compile is not None else ():
            _refuse_uncompilable(placement)

    def canonical(self) -> RecomputePolicy:
        """The policy in its one normal form, lists in order of path, without what was measured."""
        placement = tuple(sorted((p.canonical() for p in self.placement), key=lambda p: p.blocks))
        recomputes = any(p.regions for p in placement)
        # Where nothing is recomputed there is no RNG state to preserve: both settings are the same policy.
        return RecomputePolicy(
            self.batch,
            placement,
            self.preserve_rng_state if recomputes else True,
            compile=self.compile,
            reshard_after_forward=False if self.reshard_after_forward is False else None,
            compile_memory_budget=self.compile_memory_budget,
        )

    @functools.cached_property
    def key(self) -> str:
        """Twelve hex digits that are equal exactly for policies that train the same way."""
        data = policy_to_dict(self.canonical())
        compiles_blocks = self.compile == COMPILE_BLOCKS
        data["placement"] = [_trained(entry) for entry in data["placement"] if entry["regions"] or compiles_blocks]
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def recomputes(self) -> bool:
        return any(p.canonical().regions for p in self.placement)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is rebuilt, neither in a region nor by a compiler that is held to a budget of its own."""
        return self.compile_memory_budget is None and not self.recomputes

    @property
    def recomputes_every_block(self) -> bool:
        """Whether each block of each list is rebuilt whole and by itself, as most training stacks do by a switch."""
        return bool(self.placement) and all(set(placement.actions()) == {BLOCK} for placement in self.placement)

    def summary(self) -> str:
        """A short line for tables: ``mlp[0-5] block[6-11] @4x2``; several lists are named by their path."""
        parts = []
        for placement in self.placement:
            text = _placement_summary(placement.canonical())
            if text:
                parts.append(f"{placement.blocks}: {text}" if len(self.placement) > 1 else text)
        rng = "" if self.preserve_rng_state or not self.recomputes else " rng off"
        compiled = "" if self.compile is None else f" compiled {self.compile}"
        if self.compile_memory_budget is not None:
            compiled += f" budget {self.compile_memory_budget:g}"
        where = "; ".join(parts) or NONE
        reshard = " reshard off" if self.reshard_after_forward is False else ""
        batch = f"@{self.batch.micro_batch_size}x{self.batch.gradient_accumulation_steps}"
        return f"{where}{rng}{compiled}{reshard} {batch}"


def _trained(entry: dict[str, Any]) -> dict[str, Any]:
    """One list of blocks without the units that no region names: they change nothing."""
    named = {name for region in entry["regions"] for name in units_of(region["action"])}
    return {**entry, "units": {name: path for name, path in entry["units"].items() if name in named}}


def _placement_summary(placement: BlockListPlacement) -> str:
    def name(region: Region) -> str:
        shown = shown_action(region.action)
        return shown if region.segment_size is None else f"{shown}({region.segment_size})"

    if len(placement.regions) == 1 and placement.regions[0].num_blocks == placement.num_blocks:
        return name(placement.regions[0])
    return " ".join(
        f"{name(r)}[{r.first}-{r.last}]" if r.last > r.first else f"{name(r)}[{r.first}]" for r in placement.regions
    )


def policy_to_dict(policy: RecomputePolicy) -> dict[str, Any]:
    """The plain data of ``policy.yaml``, in the order a person reads it."""
    data: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "batch": {
            "micro_batch_size": policy.batch.micro_batch_size,
            "gradient_accumulation_steps": policy.batch.gradient_accumulation_steps,
            "data_parallel_degree": policy.batch.data_parallel_degree,
            "global_batch_size": policy.batch.global_batch_size,
        },
        "preserve_rng_state": policy.preserve_rng_state,
        **({} if policy.reshard_after_forward is None else {"reshard_after_forward": policy.reshard_after_forward}),
        "placement": [
            {
                "blocks": placement.blocks,
                "num_blocks": placement.num_blocks,
                "units": dict(placement.units),
                "regions": [_region_to_dict(region) for region in placement.regions],
            }
            for placement in policy.placement
        ],
    }
    if policy.compile is not None:
        data["compile"] = policy.compile
    if policy.compile_memory_budget is not None:
        data["compile_memory_budget"] = policy.compile_memory_budget
    if policy.measured is not None:
        data["measured"] = dict(policy.measured)
    return data


def _region_to_dict(region: Region) -> dict[str, Any]:
    data: dict[str, Any] = {"first": region.first, "last": region.last, "action": action_kind(region.action)}
    if region.keep:
        data["keep"] = list(region.keep)
    if region.segment_size is not None:
        data["segment_size"] = region.segment_size
    return data
