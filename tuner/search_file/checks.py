"""What options of search.yaml must not say together. Each option alone is checked by its type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from search_spaces.actions import OFFLOAD, SEGMENT, UNIT_JOINER, WHOLE_BLOCK_ACTIONS, units_of
from search_spaces.policy import COMPILE_MODES
from search_spaces.yaml_nodes import KeyPath, dotted
from search_spaces.yaml_words import quoted
from tuner.search_file.names import FOUND_INNER_UNITS, FOUND_UNITS, RNG_OF_TARGET
from tuner.search_file.suggestion import did_you_mean

if TYPE_CHECKING:
    from tuner.config import SearchConfig

CONTRADICTIONS = "contradictions"
PIPELINE = "pipeline"
_MAX_LISTED = 16


@dataclass(frozen=True)
class Contradiction:
    """Two options that cannot both be as they are.

    Attributes:
        path: The option that the message begins with.
        other: The option it contradicts.
        text: One line that names both.
    """

    path: KeyPath
    other: KeyPath
    text: str


def contradictions(config: SearchConfig) -> list[Contradiction]:
    """Everything that the options contradict each other in, in the order of search.yaml."""
    return [
        *_ranks(config),
        *_pipeline(config),
        *_micro_batch_sizes(config),
        *_repeated_entries(config),
        *_unknown_units(config),
        *_segment_sizes(config),
        *_rng_of_target(config),
        *_compile_memory_budget(config),
        *_step_counts(config),
        *_device_resources(config),
        *_resharding(config),
        *_compiled_ranks(config),
    ]


def _ranks(config: SearchConfig) -> Iterator[Contradiction]:
    degree, whole = config.runner.data_parallel_degree, config.batch.global_batch_size
    path: KeyPath = ("runner", "data_parallel_degree")
    if degree > 1 and config.runner.strategy == "none":
        other: KeyPath = ("runner", "strategy")
        text = (
            f"{dotted(path)} is {degree}, but {dotted(other)} none has 1 rank; "
            "set the second to ddp or fsdp2, or the first to 1"
        )
        yield Contradiction(path, other, text)
    if whole % degree:
        other = ("batch", "global_batch_size")
        divisors = [divisor for divisor in range(1, min(whole, 4096) + 1) if whole % divisor == 0]
        text = (
            f"{dotted(path)} is {degree}, which does not divide {dotted(other)} {whole}; "
            f"allowed: {_listed(divisors)}; change one of the two"
        )
        yield Contradiction(path, other, text)


def _pipeline(config: SearchConfig) -> Iterator[Contradiction]:
    """What a pipeline needs, and what is not measured in one."""
    runner = config.runner
    stages, strategy, whole = runner.pipeline_stages, runner.strategy, config.batch.global_batch_size
    path: KeyPath = ("runner", "pipeline_stages")
    other: KeyPath = ("runner", "strategy")
    if (stages > 1) != (strategy == PIPELINE):
        text = (
            f"{dotted(path)} is {stages}, but {dotted(other)} is {strategy}; allowed: 2 or more with {PIPELINE}, 1 "
            "with any other; change one of the two"
        )
        yield Contradiction(path, other, text)
    if strategy != PIPELINE:
        return
    if whole < stages:
        other = ("batch", "global_batch_size")
        text = (
            f"{dotted(path)} is {stages}, but {dotted(other)} is {whole}, and a step needs a micro-batch for each "
            f"stage; allowed: from 2 to {whole}; lower the first or raise the second"
        )
        yield Contradiction(path, other, text)
    if runner.data_parallel_degree > 1:
        yield _not_in_pipeline(("runner", "data_parallel_degree"), str(runner.data_parallel_degree), "1")
    if isinstance(config.batch.sequence_length, tuple):
        yield _not_in_pipeline(("batch", "sequence_length"), "a list", "a single length")
    if config.placement.target not in (None, "policy"):
        yield _not_in_pipeline(("placement", "target"), str(config.placement.target), "null or policy")
    if OFFLOAD in config.placement.actions:
        index = config.placement.actions.index(OFFLOAD)
        yield _not_in_pipeline(("placement", "actions", index), OFFLOAD, "any other action")


def _not_in_pipeline(path: KeyPath, value: str, allowed: str) -> Contradiction:
    other: KeyPath = ("runner", "strategy")
    text = (
        f"{dotted(path)} is {value}, but {dotted(other)} is {PIPELINE}, in which that is not measured; allowed: "
        f"{allowed}; change one of the two"
    )
    return Contradiction(path, other, text)


def _micro_batch_sizes(config: SearchConfig) -> Iterator[Contradiction]:
    degree = config.runner.data_parallel_degree
    sizes, whole = config.batch.micro_batch_sizes, config.batch.global_batch_size // degree
    if sizes == "auto" or config.batch.global_batch_size % degree:
        return
    other: KeyPath = ("batch", "global_batch_size")
    per_rank = "" if degree == 1 else f", the part of each of {degree} ranks"
    for index, size in enumerate(sizes):
        path: KeyPath = ("batch", "micro_batch_sizes", index)
        if whole % size == 0 and whole // size < config.runner.pipeline_stages:
            stages = config.runner.pipeline_stages
            allowed = [divisor for divisor in range(1, whole // stages + 1) if whole % divisor == 0]
            text = (
                f"{dotted(path)} is {size}, which divides {dotted(other)} {whole} into {whole // size}, but a step "
                f"needs a micro-batch for each of runner.pipeline_stages {stages}; allowed: {_listed(allowed)}; change "
                "one of the two"
            )
            yield Contradiction(path, other, text)
        if whole % size:
            divisors = [divisor for divisor in range(1, min(whole, 4096) + 1) if whole % divisor == 0]
            text = (
                f"{dotted(path)} is {size}, which does not divide {dotted(other)} {whole}{per_rank}; "
                f"allowed: {_listed(divisors)}; change one of the two"
            )
            yield Contradiction(path, other, text)


def _listed(numbers: list[int]) -> str:
    more = ", ..." if len(numbers) > _MAX_LISTED else ""
    return ", ".join(map(str, numbers[:_MAX_LISTED])) + more


def _repeated_entries(config: SearchConfig) -> Iterator[Contradiction]:
    lists: tuple[tuple[KeyPath, object], ...] = (
        (("model", "compile_memory_budget"), config.model.compile_memory_budget),
        (("batch", "micro_batch_sizes"), config.batch.micro_batch_sizes),
        (("batch", "sequence_length"), config.batch.sequence_length),
        (("placement", "blocks"), config.placement.blocks),
        (("placement", "actions"), config.placement.actions),
        (("placement", "segment_sizes"), config.placement.segment_sizes),
    )
    for path, entries in lists:
        if not isinstance(entries, tuple):
            continue
        for index, entry in enumerate(entries):
            first = entries.index(entry)
            if first < index:
                here, before = (*path, index), (*path, first)
                text = (
                    f"{dotted(here)} is {entry}, as {dotted(before)} is already; name each once, remove one of the two"
                )
                yield Contradiction(here, before, text)


def _unknown_units(config: SearchConfig) -> Iterator[Contradiction]:
    units = config.placement.units
    known = (*FOUND_UNITS, *FOUND_INNER_UNITS) if units == "auto" else tuple(units)
    other: KeyPath = ("placement", "units")
    for index, action in enumerate(config.placement.actions):
        unknown = [name for name in units_of(action) if name not in known]
        if unknown:
            path: KeyPath = ("placement", "actions", index)
            names = (*WHOLE_BLOCK_ACTIONS, *known)
            text = (
                f"{dotted(path)} is {quoted(action)}, but {dotted(other)} has no {unknown[0]}; "
                f"allowed: {', '.join(names)}, or units joined by {UNIT_JOINER}{did_you_mean(unknown[0], names)}"
            )
            yield Contradiction(path, other, text)


def _segment_sizes(config: SearchConfig) -> Iterator[Contradiction]:
    if config.placement.segment_sizes != "auto" and SEGMENT not in config.placement.actions:
        path: KeyPath = ("placement", "segment_sizes")
        other: KeyPath = ("placement", "actions")
        text = f"{dotted(path)} is set, but {dotted(other)} has no {SEGMENT}; add it there or remove {path[-1]}"
        yield Contradiction(path, other, text)


def _rng_of_target(config: SearchConfig) -> Iterator[Contradiction]:
    target, preserve = config.placement.target, config.placement.preserve_rng_state
    if target is None or target not in RNG_OF_TARGET or preserve in ("search", RNG_OF_TARGET[target]):
        return
    path: KeyPath = ("placement", "preserve_rng_state")
    other: KeyPath = ("placement", "target")
    own = str(RNG_OF_TARGET[target]).lower()
    text = (
        f"{dotted(path)} is {str(preserve).lower()}, but {dotted(other)} {target} can say {own} only; "
        f"remove {path[-1]} or write {own}"
    )
    yield Contradiction(path, other, text)


def _compile_memory_budget(config: SearchConfig) -> Iterator[Contradiction]:
    budget, target = config.model.compile_memory_budget, config.placement.target
    if budget is None:
        return
    path: KeyPath = ("model", "compile_memory_budget")
    shown = f"{budget:g}" if isinstance(budget, float) else f"[{', '.join(f'{each:g}' for each in budget)}]"
    if config.model.compile is None:
        other: KeyPath = ("model", "compile")
        text = (
            f"{dotted(path)} is {shown}, but {dotted(other)} is null; allowed with {dotted(other)} "
            f"{' or '.join(COMPILE_MODES)}: remove {path[-1]} or write one of these"
        )
        yield Contradiction(path, other, text)
    if target not in (None, "policy"):
        other = ("placement", "target")
        text = (
            f"{dotted(path)} is {shown}, but {dotted(other)} {target} cannot say a budget of the compiler; allowed "
            f"with {dotted(other)} policy or null: remove {path[-1]} or {other[-1]}"
        )
        yield Contradiction(path, other, text)


def _step_counts(config: SearchConfig) -> Iterator[Contradiction]:
    least, most = config.measurement.min_steps, config.measurement.max_steps
    if least > most:
        path: KeyPath = ("measurement", "min_steps")
        other: KeyPath = ("measurement", "max_steps")
        text = f"{dotted(path)} is {least}, above {dotted(other)} {most}; lower the first or raise the second"
        yield Contradiction(path, other, text)


def _device_resources(config: SearchConfig) -> Iterator[Contradiction]:
    device, resources = config.runner.device, config.runner.resources_per_trial
    if device == "auto" or resources == "auto":
        return
    path: KeyPath = ("runner", "resources_per_trial")
    other: KeyPath = ("runner", "device")
    needed = {"cuda": "GPU", "npu": "NPU"}.get(device)
    unused = [name for name in ("GPU", "NPU") if name in resources and name != needed]
    where = f"{dotted(path)} asks {', '.join(resources)}"
    if needed is not None and needed not in resources:
        yield Contradiction(path, other, f"{where}, but {dotted(other)} {device} needs {needed}; add {needed}: 1")
    elif unused:
        text = f"{where}, but {dotted(other)} {device} uses no {unused[0]}; remove it or change the device"
        yield Contradiction(path, other, text)


def _resharding(config: SearchConfig) -> Iterator[Contradiction]:
    reshard, strategy = config.runner.reshard_after_forward, config.runner.strategy
    if reshard is not True and strategy != "fsdp2":
        path: KeyPath = ("runner", "reshard_after_forward")
        other: KeyPath = ("runner", "strategy")
        shown = reshard if isinstance(reshard, str) else "false"
        text = (
            f"{dotted(path)} is {shown}, but {dotted(other)} {strategy} divides no blocks; "
            f"allowed: true; remove {path[-1]} or set {dotted(other)} to fsdp2"
        )
        yield Contradiction(path, other, text)


def _compiled_ranks(config: SearchConfig) -> Iterator[Contradiction]:
    if config.model.compile is not None and config.runner.strategy != "none":
        path: KeyPath = ("runner", "strategy")
        other: KeyPath = ("model", "compile")
        text = (
            f"{dotted(path)} is {config.runner.strategy}, but {dotted(other)} is {config.model.compile}, which is "
            f"measured in one process; allowed together: {path[-1]} none, or {other[-1]} null; change one of the two"
        )
        yield Contradiction(path, other, text)
