"""What a diagnosis means: the floor and who holds it, what memory is mainly made of, and what would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runners.diagnosis.records import HeldTensors, PeakSplit
from runners.trial import MemoryByKind
from tuner.diagnosis.place_names import tensor_text
from tuner.memory_size import describe_bytes, format_bytes

#: Tensors that are named at the floor.
_MOST_HELD = 5
#: Share of a peak from which on something is worth a remedy of its own.
_NOTABLE_SHARE = 0.25
_OF_BLOCKS = "activations of the blocks"
#: Examples that remedies are reckoned with: ranks that states are divided over, and pieces of a loss.
_RANKS, _CHUNKS = 8, 8


def floor_text(floors: Sequence[PeakSplit]) -> Iterator[str]:
    """How far down a placement can go, at each size that was looked at, and what is alive then."""
    for floor in floors:
        batch = f"micro-batch {floor.micro_batch_size} x {floor.gradient_accumulation_steps}"
        measured = f"{floor.policy_summary}, measured {describe_bytes(floor.peak_memory_bytes)}"
        yield f"floor at {batch}: {_basis(floor)}: {measured}."
        yield f"  alive then: {_kinds_text(floor.memory_bytes, floor.peak_memory_bytes)}"
        shown = [held for held in floor.held if held.kind != "gradients"][:_MOST_HELD]
        for held in shown:
            yield f"  {format_bytes(held.num_bytes):>11}  {tensor_text(held)} ({_kind_name(held.kind)})"


def main_consumer_text(plain: PeakSplit, kept_bytes: int | None) -> Iterator[str]:
    """Whether activations are what memory is made of."""
    peak, uses = plain.peak_memory_bytes, _uses(plain)
    name, size = max(uses.items(), key=lambda item: item[1])
    of_blocks = uses[_OF_BLOCKS]
    if name == _OF_BLOCKS:
        yield f"Activations of the blocks are the main use of memory: {of_blocks / peak:.0%} of the peak."
    else:
        yield (
            f"Activations of the blocks are not the main use of memory: they are {of_blocks / peak:.0%} of the peak, "
            f"{name} {size / peak:.0%}."
        )
    if kept_bytes is not None:
        yield f"One micro-batch keeps {format_bytes(kept_bytes)} for its backward, all activations together."


def verdict_text(plain: PeakSplit, floors: Sequence[PeakSplit], cap_bytes: int) -> str:
    """Whether recompute can help under the cap."""
    cap, size = format_bytes(cap_bytes), plain.micro_batch_size
    if plain.peak_memory_bytes <= cap_bytes:
        return f"It fits into {cap} without recompute; recompute could only make room for something larger."
    no_placement = "no placement of this search" if all(map(_is_lowest, floors)) else "no placement that was looked at"
    for floor in floors:
        if floor.peak_memory_bytes <= cap_bytes:
            least = format_bytes(floor.peak_memory_bytes)
            if floor.micro_batch_size == size:
                return f"It does not fit into {cap}; with recompute it can, down to {least}."
            return (
                f"It does not fit into {cap}, and at micro-batch {size} {no_placement} does; at micro-batch "
                f"{floor.micro_batch_size} it can, down to {least}."
            )
    least = format_bytes(min((floor.peak_memory_bytes for floor in floors), default=plain.peak_memory_bytes))
    return (
        f"It does not fit into {cap}, and {no_placement} does: the floor is {least}. Recompute alone cannot help here."
    )


def remedies_text(plain: PeakSplit, floors: Sequence[PeakSplit]) -> Iterator[str]:
    """What else would help, with numbers: for what recompute does not touch, at the plain peak or at the floor."""
    splits = [plain, *floors]
    worst = max(splits, key=lambda split: _states(split.memory_bytes) / split.peak_memory_bytes)
    if _states(worst.memory_bytes) >= _NOTABLE_SHARE * worst.peak_memory_bytes:
        yield from _states_remedies(plain, worst)
    after = max(splits, key=lambda split: _head_and_loss(split) / split.peak_memory_bytes)
    if _head_and_loss(after) >= _NOTABLE_SHARE * after.peak_memory_bytes:
        yield _loss_remedy(after)
    if len(floors) > 1:
        yield _micro_batch_remedy(floors[0], floors[-1])


def _micro_batch_remedy(larger: PeakSplit, smaller: PeakSplit) -> str:
    floors = (
        f"the floor is {format_bytes(smaller.peak_memory_bytes)} at micro-batch {smaller.micro_batch_size} and "
        f"{format_bytes(larger.peak_memory_bytes)} at {larger.micro_batch_size}"
    )
    if smaller.peak_memory_bytes < larger.peak_memory_bytes:
        return f"smaller micro-batch: {floors}."
    return f"smaller micro-batch: does not help, {floors}, since gradients stay alive between micro-batches."


def _states_remedies(plain: PeakSplit, at: PeakSplit) -> Iterator[str]:
    memory = at.memory_bytes
    states = plain.memory_bytes.parameters + plain.memory_bytes.optimizer_states
    gradients = max(plain.memory_bytes.gradients, memory.gradients)
    where = "the plain peak" if at is plain else f"the floor at micro-batch {at.micro_batch_size}"
    yield (
        f"states: parameters, gradients and optimizer states are {format_bytes(_states(memory))}, "
        f"{_states(memory) / at.peak_memory_bytes:.0%} of {where}, and recompute does not touch them. Divided over "
        f"{_RANKS} ranks (fully sharded data parallel) they would take about "
        f"{format_bytes((states + gradients) // _RANKS)} on each."
    )
    if memory.optimizer_states > memory.parameters // 2:
        yield (
            f"optimizer: its states take {format_bytes(memory.optimizer_states)}, "
            f"{memory.optimizer_states / max(memory.parameters, 1):.1f} times the parameters. One with a single state "
            f"per parameter (sgd with momentum) takes {format_bytes(memory.parameters)}, sgd without momentum none."
        )


def _loss_remedy(at: PeakSplit) -> str:
    size = _head_and_loss(at)
    largest = next((held for held in at.held if _is_head_or_loss(held)), None)
    example = "" if largest is None else f"; the largest is {tensor_text(largest)}, {format_bytes(largest.num_bytes)}"
    return (
        f"head and loss: {format_bytes(size)}, {size / at.peak_memory_bytes:.0%} of the peak of {at.policy_summary}, "
        f"is made after the blocks{example}. No placement drops it. A loss computed in {_CHUNKS} chunks of the tokens "
        f"would hold about {format_bytes(size // _CHUNKS)}."
    )


def _is_head_or_loss(held: HeldTensors) -> bool:
    return held.stage == "after" and held.kind != "gradients"


def _head_and_loss(split: PeakSplit) -> int:
    """Bytes of activations and temporary memory that are made after the last block, or in the backward of that."""
    return sum(_moving(place.memory_bytes) for place in split.places if place.stage == "after")


def _moving(memory: MemoryByKind) -> int:
    return memory.activations + memory.temporary


def _states(memory: MemoryByKind) -> int:
    return memory.parameters + memory.gradients + memory.optimizer_states


def _uses(split: PeakSplit) -> dict[str, int]:
    """What memory is used for, in words."""
    within = [place.memory_bytes for place in split.places if place.blocks is not None]
    kept_in_blocks = sum(memory.activations for memory in within)
    passing_in_blocks = sum(memory.temporary for memory in within)
    head_and_loss = _head_and_loss(split)
    return {
        _OF_BLOCKS: kept_in_blocks,
        "temporary memory of the blocks": passing_in_blocks,
        "head and loss": head_and_loss,
        "states (parameters, gradients, optimizer states)": _states(split.memory_bytes),
        "buffers": split.memory_bytes.buffers,
        "activations and temporary memory outside of blocks": (
            _moving(split.memory_bytes) - kept_in_blocks - passing_in_blocks - head_and_loss
        ),
    }


def _basis(floor: PeakSplit) -> str:
    """What makes it a floor."""
    if floor.predicted_peak_bytes is None:
        return "nothing was predicted, so recompute of every block is looked at"
    predicted = format_bytes(floor.predicted_peak_bytes)
    if _is_lowest(floor):
        return f"no placement of this search is predicted below {predicted}"
    return f"of placements with one action on all blocks none is predicted below {predicted}"


def _is_lowest(floor: PeakSplit) -> bool:
    return floor.lowest_among == "all placements"


def _kinds_text(memory: MemoryByKind, peak_bytes: int) -> str:
    sizes = sorted(memory.model_dump().items(), key=lambda item: -item[1])
    return ", ".join(
        f"{_kind_name(kind)} {format_bytes(size)} ({size / peak_bytes:.0%})" for kind, size in sizes if size
    )


def _kind_name(kind: str) -> str:
    return kind.replace("_", " ")
