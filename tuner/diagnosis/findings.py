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
#: Examples that remedies are reckoned with: ranks that states are divided over, and pieces of a loss.
_RANKS, _CHUNKS = 8, 8


def floor_text(floors: Sequence[PeakSplit]) -> Iterator[str]:
    """How far down a placement can go, at each size that was looked at, and what is alive then."""
    for floor in floors:
        batch = f"micro-batch {floor.micro_batch_size} x {floor.gradient_accumulation_steps}"
        measured = f"{floor.policy_summary}, measured {describe_bytes(floor.peak_memory_bytes)}"
        if floor.predicted_peak_bytes is None:
            yield f"floor at {batch}: taken to be recompute of every block, as nothing was predicted: {measured}."
        else:
            predicted = format_bytes(floor.predicted_peak_bytes)
            yield f"floor at {batch}: no placement of this search is predicted below {predicted}: {measured}."
        yield f"  alive then: {_kinds_text(floor.memory_bytes, floor.peak_memory_bytes)}"
        shown = [held for held in floor.held if held.kind != "gradients"][:_MOST_HELD]
        for held in shown:
            yield f"  {format_bytes(held.num_bytes):>11}  {tensor_text(held)} ({_kind_name(held.kind)})"


def main_consumer_text(plain: PeakSplit, kept_bytes: int | None) -> Iterator[str]:
    """Whether activations are what memory is made of."""
    shares = _shares(plain)
    name, size = max(shares.items(), key=lambda item: item[1])
    activations = shares["activations"]
    if name == "activations":
        text = f"Activations are the main use of memory: {activations / plain.peak_memory_bytes:.0%} of the peak."
    else:
        text = (
            f"Activations are not the main use of memory: they are {activations / plain.peak_memory_bytes:.0%} of the "
            f"peak, {name} {size / plain.peak_memory_bytes:.0%}."
        )
    kept = "" if kept_bytes is None else f" One micro-batch keeps {format_bytes(kept_bytes)} for its backward."
    yield text + kept


def verdict_text(plain: PeakSplit, floors: Sequence[PeakSplit], cap_bytes: int) -> str:
    """Whether recompute can help under the cap."""
    cap, size = format_bytes(cap_bytes), plain.micro_batch_size
    if plain.peak_memory_bytes <= cap_bytes:
        return f"It fits into {cap} without recompute; recompute could only make room for something larger."
    for floor in floors:
        if floor.peak_memory_bytes <= cap_bytes:
            where = "" if floor.micro_batch_size == size else f" at micro-batch {floor.micro_batch_size}"
            alone = (
                ""
                if floor.micro_batch_size == size
                else f" At micro-batch {size} no placement does, so a smaller micro-batch is needed as well."
            )
            return (
                f"It does not fit into {cap}; with recompute it can{where}, down to "
                f"{format_bytes(floor.peak_memory_bytes)}.{alone}"
            )
    least = min((floor.peak_memory_bytes for floor in floors), default=plain.peak_memory_bytes)
    return (
        f"It does not fit into {cap}, and no placement of this search does: the floor is {format_bytes(least)}. "
        "Recompute alone cannot help here."
    )


def remedies_text(plain: PeakSplit, floors: Sequence[PeakSplit], smallest_micro_batch: int) -> Iterator[str]:
    """What else would help, with numbers: for what recompute does not touch, at the plain peak or at the floor."""
    worst = max([plain, *floors], key=lambda split: _states(split.memory_bytes) / split.peak_memory_bytes)
    if _states(worst.memory_bytes) >= _NOTABLE_SHARE * worst.peak_memory_bytes:
        yield from _states_remedies(plain, worst)
    after = max([plain, *floors], key=lambda split: _head_and_loss(split) / split.peak_memory_bytes)
    if _head_and_loss(after) >= _NOTABLE_SHARE * after.peak_memory_bytes:
        yield _loss_remedy(after)
    if plain.micro_batch_size > smallest_micro_batch:
        moving = plain.memory_bytes.activations + plain.memory_bytes.temporary
        scaled = moving * smallest_micro_batch // plain.micro_batch_size
        yield (
            f"smaller micro-batch: activations and temporary memory, {format_bytes(moving)} at micro-batch "
            f"{plain.micro_batch_size}, shrink in proportion, to about {format_bytes(scaled)} at "
            f"{smallest_micro_batch}; gradients then stay alive between micro-batches."
        )


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
    after = [place.memory_bytes for place in split.places if place.stage == "after"]
    return sum(memory.activations + memory.temporary for memory in after)


def _states(memory: MemoryByKind) -> int:
    return memory.parameters + memory.gradients + memory.optimizer_states


def _shares(split: PeakSplit) -> dict[str, int]:
    memory = split.memory_bytes
    return {
        "activations": memory.activations,
        "temporary memory": memory.temporary,
        "states (parameters, gradients, optimizer states)": _states(memory),
        "buffers": memory.buffers,
    }


def _kinds_text(memory: MemoryByKind, peak_bytes: int) -> str:
    sizes = sorted(memory.model_dump().items(), key=lambda item: -item[1])
    return ", ".join(
        f"{_kind_name(kind)} {format_bytes(size)} ({size / peak_bytes:.0%})" for kind, size in sizes if size
    )


def _kind_name(kind: str) -> str:
    return kind.replace("_", " ")
