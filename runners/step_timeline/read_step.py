"""A recorded step -> its timeline: which tensors were kept, by whom, from when to when, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from runners.measure.allocation_trace import Allocation
from runners.step_timeline.block_owners import BlockOwners, Owner
from runners.step_timeline.kept_storages import KeptBy, KeptStorage, kept_storages
from runners.step_timeline.records import KeptGroup, KeptTensor, Saver, TensorKind, TracedStep
from runners.step_timeline.save_log import SaveLog
from runners.step_timeline.step_parts import StepParts
from runners.step_timeline.step_recording import Place, StepRecording
from search_spaces.policy import RecomputePolicy

#: What a storage that was there before the step is, by its address.
KindOf = Callable[[int], TensorKind]


@dataclass(frozen=True)
class RecordedStep:
    """All that is known of one step.

    Attributes:
        recording: From the beginning of the step on.
        start_bytes: Alive when it began.
    """

    policy: RecomputePolicy
    recording: StepRecording
    log: SaveLog
    parts: StepParts
    owners: BlockOwners
    kind_of: KindOf
    start_bytes: int


@dataclass(frozen=True)
class _Entry:
    """A tensor with what the sums need of it."""

    tensor: KeptTensor
    owner: Owner
    storage: KeptStorage


def read_step(step: RecordedStep, *, num_blocks: int | None) -> TracedStep:
    """The timeline, without the times that need another step.

    Args:
        num_blocks: See `StepTimelineSpec`.
    """
    return _Reader(step).read(num_blocks)


class _Reader:
    def __init__(self, step: RecordedStep) -> None:
        self._step = step
        self._parts = step.parts
        self._births = step.recording.births
        kept = kept_storages(step.recording, step.log)
        known = {(each.address, each.allocation) for each in kept}
        held = [
            KeptStorage(each.address, each.num_bytes, each)
            for each in step.recording.trace.allocations()
            if self._outlives_forward(each) and (each.address, each) not in known
        ]
        self._entries = [self._entry(storage) for storage in [*kept, *held]]

    def read(self, num_blocks: int | None) -> TracedStep:
        step, parts = self._step, self._parts
        gained, peak_ns = step.recording.trace.peak()
        shown = [each for each in self._entries if num_blocks is None or each.owner.position < num_blocks]
        held = [each for each in self._entries if each.tensor.kind is TensorKind.HELD]
        return TracedStep(
            policy=step.policy,
            traced_step_time_s=parts.seconds(parts.end_ns),
            start_bytes=step.start_bytes,
            backward_start_bytes=step.start_bytes + self._gained_until(parts.backward_start_ns),
            peak_memory_bytes=step.start_bytes + gained,
            peak_s=parts.seconds(peak_ns),
            phases=tuple(parts.spans()),
            curve=parts.curve(
                ((time_ns, size) for time_ns, size, _ in step.recording.trace.changes),
                self._kept_changes(),
                step.start_bytes,
            ),
            tensors=tuple(each.tensor for each in sorted(shown, key=_first_moment)),
            groups=tuple(self._groups()),
            num_held=len(held),
            held_bytes=sum(each.storage.num_bytes for each in held),
        )

    def _entry(self, storage: KeptStorage) -> _Entry:
        allocation = storage.allocation
        birth = None if allocation is None else self._births[allocation.address, allocation.allocated_ns]
        first = storage.kept_by[0].place if storage.kept_by else birth
        assert first is not None, "a storage is kept by something or was born in the step"
        owner = self._step.owners.owner_of(first.calls)
        parts = self._parts
        tensor = KeptTensor(
            kind=self._kind(storage),
            block=owner.block,
            unit=owner.unit,
            num_bytes=storage.num_bytes,
            birth_s=None if allocation is None else parts.seconds(allocation.allocated_ns),
            born_in=None if allocation is None else parts.phase_at(allocation.allocated_ns),
            made_by=None if birth is None else _words(birth),
            savers=tuple(self._saver(kept) for kept in storage.kept_by),
            last_use_s=parts.seconds_or_none(storage.last_use_ns),
            freed_s=None if allocation is None else parts.seconds_or_none(allocation.freed_ns),
        )
        return _Entry(tensor, owner, storage)

    def _kind(self, storage: KeptStorage) -> TensorKind:
        if storage.is_on_host:
            return TensorKind.ON_HOST
        if storage.allocation is None:
            return self._step.kind_of(storage.address)
        return TensorKind.ACTIVATION if storage.kept_by else TensorKind.HELD

    def _saver(self, kept: KeptBy) -> Saver:
        return Saver(
            module=kept.place.module,
            operator=kept.place.operator or "",
            node=kept.node,
            phase=self._parts.phase_at(kept.saved_ns),
            shape=kept.view.shape,
            dtype=kept.view.dtype,
            saved_s=self._parts.seconds(kept.saved_ns),
            used_s=self._parts.seconds_or_none(kept.used_ns),
        )

    def _outlives_forward(self, allocation: Allocation) -> bool:
        start_ns = self._parts.backward_start_ns
        return allocation.allocated_ns < start_ns and (allocation.freed_ns is None or allocation.freed_ns > start_ns)

    def _gained_until(self, time_ns: int) -> int:
        return sum(size for at_ns, size, _ in self._step.recording.trace.changes if at_ns < time_ns)

    def _kept_changes(self) -> Iterator[tuple[int, int]]:
        for each in self._entries:
            allocation = each.storage.allocation
            if each.tensor.kind is TensorKind.ACTIVATION and allocation is not None:
                yield allocation.allocated_ns, allocation.num_bytes
                if allocation.freed_ns is not None:
                    yield allocation.freed_ns, -allocation.num_bytes

    def _groups(self) -> Iterator[KeptGroup]:
        own = [each for each in self._entries if each.tensor.kind in (TensorKind.ACTIVATION, TensorKind.ON_HOST)]
        members: dict[tuple[str | None, str | None], list[_Entry]] = {}
        for each in sorted(own, key=_first_moment):
            members.setdefault((each.owner.block, each.owner.unit), []).append(each)
        starts = self._own_backward_starts()
        blocks = sorted({each.owner for each in own if each.owner.block is not None}, key=lambda owner: owner.order)
        for block in [*dict.fromkeys(owner.block for owner in blocks), None]:
            for (of_block, unit), entries in members.items():
                if of_block == block:
                    start_ns = self._parts.backward_start_ns if block is None else starts.get(block)
                    yield self._group(block, unit, entries, start_ns)

    def _group(self, block: str | None, unit: str | None, entries: list[_Entry], start_ns: int | None) -> KeptGroup:
        on_host = [each.storage for each in entries if each.storage.is_on_host]
        here = [each.storage for each in entries if not each.storage.is_on_host]
        allocations = [storage.allocation for storage in here if storage.allocation is not None]
        kept = [each for each in allocations if self._outlives_forward(each)]
        alive = [each for each in kept if start_ns is None or each.freed_ns is None or each.freed_ns > start_ns]
        rebuilt = [each for each in allocations if each.allocated_ns > self._parts.backward_start_ns]
        return KeptGroup(
            block=block,
            unit=unit,
            num_tensors=len(kept),
            kept_bytes=_total(kept),
            at_own_backward_bytes=_total(alive),
            num_recomputed=len(rebuilt),
            recomputed_bytes=_total(rebuilt),
            num_on_host=len(on_host),
            on_host_bytes=sum(storage.num_bytes for storage in on_host),
        )

    def _own_backward_starts(self) -> dict[str, int]:
        """When the backward of each block starts, in ns: with its rebuild, or with its first use of what it kept."""
        starts: dict[str, int] = {}
        for each in self._entries:
            for kept in each.storage.kept_by:
                block = self._step.owners.owner_of(kept.place.calls).block
                if block is None:
                    continue
                rebuild = self._parts.rebuild_around(kept.saved_ns)
                moments = [kept.used_ns, None if rebuild is None else rebuild.start_ns, starts.get(block)]
                known = [moment for moment in moments if moment is not None]
                if known:
                    starts[block] = min(known)
        return starts


def _total(allocations: Iterable[Allocation]) -> int:
    return sum(each.num_bytes for each in allocations)


def _first_moment(entry: _Entry) -> float:
    saved = [saver.saved_s for saver in entry.tensor.savers]
    return min(saved) if saved else entry.tensor.birth_s or 0.0


def _words(place: Place) -> str:
    return f"{place.module or 'the model'}: {place.operator or place.node or 'outside of operators'}"
