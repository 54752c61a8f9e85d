"""The whole decision, as pure data: micro-batch and where each block recomputes. Knows no model, device or file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 1

NONE = "none"
BLOCK = "block"
SEGMENT = "segment"
#: Joins unit names into one action: ``attention+mlp`` is two recompute regions, one per unit.
UNIT_JOINER = "+"
#: Actions that are not made of units. `selective` and `offload` are reserved names.
WHOLE_BLOCK_ACTIONS = (NONE, BLOCK, SEGMENT)
RESERVED_ACTIONS = ("selective", "offload")


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
        return () if self.action in WHOLE_BLOCK_ACTIONS else tuple(self.action.split(UNIT_JOINER))


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
        if self.num_blocks < 1:
            raise PolicyError(f"{where}: num_blocks is {self.num_blocks}; at least 1 is allowed")
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
            if region.action in RESERVED_ACTIONS:
                raise PolicyError(f"{span}: action {region.action} is not supported yet")
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
        merged: list[Region] = []
        for region in map(_normal_region, self.regions):
            if region.action == NONE:
                continue
            if merged and _continues(merged[-1], region):
                merged[-1] = Region(merged[-1].first, region.last, region.action, merged[-1].segment_size)
            else:
                merged.append(region)
        return BlockListPlacement(self.blocks, self.num_blocks, tuple(sorted(self.units)), tuple(merged))


def _normal_region(region: Region) -> Region:
    if region.action == SEGMENT and region.segment_size is not None:
        size = min(region.segment_size, region.num_blocks)
        return (
            Region(region.first, region.last, BLOCK) if size == 1 else Region(region.first, region.last, SEGMENT, size)
        )
    units = region.unit_names()
    return Region(region.first, region.last, UNIT_JOINER.join(sorted(set(units))) if units else region.action)


def _continues(before: Region, after: Region) -> bool:
    """True where two neighbours can be one region without moving any segment's border."""
    same = before.last + 1 == after.first and before.action == after.action
    if not same or before.action != SEGMENT:
        return same
    assert before.segment_size is not None
    if before.num_blocks % before.segment_size:
        return False
    return after.segment_size == before.segment_size or (
        after.num_blocks < before.segment_size and after.segment_size == after.num_blocks
    )


@dataclass(frozen=True)
class RecomputePolicy:
    """Micro-batch and placement together: what a trial measures and what is exported.

    ``measured`` is what a study wrote beside the policy; it is carried along and takes no part in equality.
    """

    batch: BatchShape
    placement: tuple[BlockListPlacement, ...] = ()
    preserve_rng_state: bool = True
    measured: Mapping[str, Any] | None = field(default=None, compare=False, hash=False)

    def __post_init__(self) -> None:
        paths = [placement.blocks for placement in self.placement]
        repeated = sorted({path for path in paths if paths.count(path) > 1})
        if repeated:
            raise PolicyError(f"placement names {repeated[0]} twice; each list of blocks is placed once")

    def canonical(self) -> RecomputePolicy:
        """The policy in its one normal form, lists in order of path, without what was measured."""
        placement = tuple(sorted((p.canonical() for p in self.placement), key=lambda p: p.blocks))
        recomputes = any(p.regions for p in placement)
        # Where nothing is recomputed there is no RNG state to preserve: both settings are the same policy.
        return RecomputePolicy(self.batch, placement, self.preserve_rng_state if recomputes else True)

    @property
    def key(self) -> str:
        """Twelve hex digits that are equal exactly for policies that train the same way."""
        text = json.dumps(policy_to_dict(self.canonical()), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def recomputes(self) -> bool:
        return any(p.canonical().regions for p in self.placement)

    def summary(self) -> str:
        """A short line for tables: ``mlp[0-5] block[6-11] @4x2``; several lists are named by their path."""
        parts = []
        for placement in self.placement:
            text = _placement_summary(placement.canonical())
            if text:
                parts.append(f"{placement.blocks}: {text}" if len(self.placement) > 1 else text)
        rng = "" if self.preserve_rng_state or not self.recomputes else " rng off"
        where = "; ".join(parts) or NONE
        return f"{where}{rng} @{self.batch.micro_batch_size}x{self.batch.gradient_accumulation_steps}"


def _placement_summary(placement: BlockListPlacement) -> str:
    def name(region: Region) -> str:
        return region.action if region.segment_size is None else f"{region.action}({region.segment_size})"

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
    if policy.measured is not None:
        data["measured"] = dict(policy.measured)
    return data


def _region_to_dict(region: Region) -> dict[str, Any]:
    data: dict[str, Any] = {"first": region.first, "last": region.last, "action": region.action}
    if region.segment_size is not None:
        data["segment_size"] = region.segment_size
    return data


def policy_from_dict(data: object) -> RecomputePolicy:
    """Reads the plain data of ``policy.yaml`` strictly: unknown, missing and wrong entries are refused by name.

    Raises:
        PolicyError: Anything that is not exactly a policy of this schema version.
    """
    root = _mapping(
        data, "policy", required=("schema_version", "batch", "placement"), optional=("preserve_rng_state", "measured")
    )
    if root["schema_version"] != SCHEMA_VERSION:
        raise PolicyError(f"schema_version is {root['schema_version']!r}; this release reads version {SCHEMA_VERSION}")
    batch = _mapping(
        root["batch"],
        "batch",
        required=("micro_batch_size", "gradient_accumulation_steps", "data_parallel_degree", "global_batch_size"),
    )
    preserve = root.get("preserve_rng_state", True)
    if not isinstance(preserve, bool):
        raise PolicyError(f"preserve_rng_state is {preserve!r}; true or false is allowed")
    measured = root.get("measured")
    if measured is not None and not isinstance(measured, dict):
        raise PolicyError(f"measured is a {type(measured).__name__}; a mapping is allowed")
    placement = tuple(
        _placement_from_dict(item, f"placement[{index}]")
        for index, item in enumerate(_sequence(root["placement"], "placement"))
    )
    return RecomputePolicy(BatchShape(**batch), placement, preserve, measured)


def _placement_from_dict(data: object, where: str) -> BlockListPlacement:
    entry = _mapping(data, where, required=("blocks", "num_blocks", "regions"), optional=("units",))
    units = entry.get("units") or {}
    if not isinstance(units, dict) or not all(isinstance(k, str) and isinstance(v, str) for k, v in units.items()):
        raise PolicyError(f"{where}.units is {units!r}; a mapping of unit name to module path is allowed")
    regions = tuple(
        _region_from_dict(item, f"{where}.regions[{index}]")
        for index, item in enumerate(_sequence(entry["regions"], f"{where}.regions"))
    )
    return BlockListPlacement(
        _text(entry["blocks"], f"{where}.blocks"),
        _whole_number(entry["num_blocks"], f"{where}.num_blocks", minimum=1),
        tuple(units.items()),
        regions,
    )


def _region_from_dict(data: object, where: str) -> Region:
    entry = _mapping(data, where, required=("first", "last", "action"), optional=("segment_size", "keep"))
    action = _text(entry["action"], f"{where}.action")
    if action in RESERVED_ACTIONS or "keep" in entry:
        raise PolicyError(f"{where}: action {action} is not supported yet")
    size = entry.get("segment_size")
    return Region(
        _whole_number(entry["first"], f"{where}.first", minimum=0),
        _whole_number(entry["last"], f"{where}.last", minimum=0),
        action,
        None if size is None else _whole_number(size, f"{where}.segment_size", minimum=1),
    )


def _mapping(data: object, where: str, *, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise PolicyError(f"{where} is a {type(data).__name__}; a mapping with {', '.join(required)} is expected")
    missing = [name for name in required if name not in data]
    if missing:
        raise PolicyError(f"{where} has no {missing[0]}; it needs {', '.join(required)}")
    unknown = [name for name in data if name not in (*required, *optional)]
    if unknown:
        raise PolicyError(f"{where} has unknown entry {unknown[0]!r}; known are {', '.join((*required, *optional))}")
    return data


def _sequence(data: object, where: str) -> list[object]:
    if not isinstance(data, list):
        raise PolicyError(f"{where} is a {type(data).__name__}; a list is expected")
    return data


def _text(data: object, where: str) -> str:
    if not isinstance(data, str) or not data:
        raise PolicyError(f"{where} is {data!r}; text is expected")
    return data


def _whole_number(data: object, where: str, *, minimum: int) -> int:
    if not isinstance(data, int) or isinstance(data, bool) or data < minimum:
        raise PolicyError(f"{where} is {data!r}; a whole number of at least {minimum} is allowed")
    return data
