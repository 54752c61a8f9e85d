"""Divides a running micro-batch into stretches: each block's forward and backward, and what lies between."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from runners.dry_run.fake_values import NoDryRunError
from runners.dry_run.live_memory import LiveMemory
from runners.dry_run.step_trace import StretchKey, TracedStretch
from runners.measure.phases import Phase
from search_spaces.memory_profile import Stretch

#: Nodes that add up gradients have the highest number there is; they belong to whatever runs before them.
_LAST_SEQUENCE_NUMBER = 2**63


class StretchRecorder:
    """Records one micro-batch; it is the watcher of its phases.

    Forward of a block lasts from its call until the first operation after it: what the parent lets go between two
    blocks belongs to the one before. Backward of a block is the run of those nodes of the graph that its forward made;
    operations of a rebuild run inside such a node.

    Args:
        lists: Modules of each list of blocks.
    """

    def __init__(self, memory: LiveMemory, lists: Sequence[Sequence[nn.Module]]) -> None:
        self._memory = memory
        self._lists = lists
        self.calls: list[list[int]] = [[] for _ in lists]
        self._stretches: list[TracedStretch] = []
        self._deaths = _Deaths()
        self._phase: Phase | None = None
        self._key: StretchKey | None = None
        self._waiting_key: StretchKey | None = None
        self._start_bytes = 0
        self._gradient_bytes = 0
        self._open_blocks = 0
        #: Sequence number from which on nodes of the graph belong to the stretch beside it.
        self._first_nodes: list[int] = []
        self._owners: list[StretchKey] = []

    def stretches(self) -> tuple[TracedStretch, ...]:
        """What was recorded, each death where it belongs."""
        return self._deaths.settled(self._stretches)

    @contextmanager
    def recording(self, model: nn.Module) -> Iterator[None]:
        """Within the context the hooks are in place; the micro-batch begins with the forward phase."""
        hooks: list[Any] = []
        seen: set[int] = set()
        for index, blocks in enumerate(self._lists):
            for position, block in enumerate(blocks):
                if id(block) not in seen:
                    seen.add(id(block))
                    hooks.append(block.register_forward_pre_hook(self._on_call(index, position), prepend=True))
                    hooks.append(block.register_forward_hook(self._on_return))
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.grad is None:
                hooks.append(parameter.register_post_accumulate_grad_hook(self._on_gradient))  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        self._memory.before_operation, self._memory.on_death = self._on_operation, self._on_death
        try:
            yield
        finally:
            self._memory.before_operation, self._memory.on_death = None, None
            self._memory.birthplace, self._memory.guesses = None, True
            for hook in hooks:
                hook.remove()

    @contextmanager
    def watching(self, phase: Phase) -> Iterator[None]:
        """As a `PhaseWatcher`."""
        if phase is Phase.FORWARD:
            self._phase = phase
            self._memory.guesses = False
            self._memory.cut()
            self._begin(self._fixed(in_backward=False))
            self._owns_from_now(self._fixed(in_backward=True))
        elif phase is Phase.BACKWARD:
            self._phase = phase
        yield
        if phase is Phase.BACKWARD:
            self._end()
            self._phase = None
            self._memory.guesses = True

    def _on_call(self, list_index: int, position: int) -> Any:
        def begin(_module: nn.Module, _args: Any) -> None:
            if self._phase is not Phase.FORWARD:
                return
            if self._open_blocks:
                raise NoDryRunError("a block is called inside another one")
            self._open_blocks += 1
            call = len(self.calls[list_index])
            self.calls[list_index].append(position)
            self._switch(StretchKey("forward", list_index, call, False))
            self._owns_from_now(StretchKey("backward", list_index, call, True))

        return begin

    def _on_return(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        if self._phase is Phase.FORWARD:
            self._open_blocks -= 1
            self._waiting_key = self._fixed(in_backward=False)
            self._owns_from_now(self._fixed(in_backward=True))

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if gradient is not None and gradient.layout == torch.strided:
            self._gradient_bytes += gradient.untyped_storage().nbytes()

    def _on_operation(self) -> None:
        if self._waiting_key is not None:
            self._switch(self._waiting_key)
        if self._phase is Phase.BACKWARD:
            node = torch._C._current_autograd_node()
            number = _LAST_SEQUENCE_NUMBER if node is None else node._sequence_nr()
            owner = bisect.bisect_right(self._first_nodes, number) - 1
            if owner >= 0 and number < _LAST_SEQUENCE_NUMBER:
                self._switch(self._owners[owner])

    def _on_death(self, birthplace: object, num_bytes: int) -> None:
        if isinstance(birthplace, StretchKey) and birthplace != self._key and num_bytes:
            self._deaths.happened.append(_Death(len(self._stretches), birthplace, num_bytes))

    def _fixed(self, *, in_backward: bool) -> StretchKey:
        return StretchKey("fixed", None, sum(map(len, self.calls)), in_backward)

    def _owns_from_now(self, key: StretchKey) -> None:
        self._first_nodes.append(torch._C._autograd._get_sequence_nr())
        self._owners.append(key)

    def _switch(self, key: StretchKey) -> None:
        self._waiting_key = None
        if key != self._key:
            self._end()
            self._begin(key)

    def _begin(self, key: StretchKey) -> None:
        self._key = self._memory.birthplace = key
        self._start_bytes = self._memory.live_bytes

    def _end(self) -> None:
        assert self._key is not None
        cut = self._memory.cut()
        stretch = Stretch(
            delta_bytes=cut.live_bytes - self._start_bytes,
            rise_bytes=cut.highest_bytes - self._start_bytes,
            flops=cut.flops,
            gradient_bytes=self._gradient_bytes,
        )
        self._gradient_bytes = 0
        self._stretches.append(TracedStretch(self._key, stretch, cut.num_operations))
        self._key = None


@dataclass(frozen=True)
class _Death:
    """A storage that died in another stretch than it was born in."""

    place: int
    birthplace: StretchKey
    num_bytes: int


class _Deaths:
    """Books the end of what a stretch made to that stretch, so that it depends on its own block's placement alone.

    What a block hands to the next one dies in the next one's backward where that alone has saved it, and in the
    block's own where it has saved it, too (as a ReLU saves its output). Booked to the start of the block's own
    backward it is the same in either case, and no moment of the step becomes higher or lower by it: the block's rise
    counts from a start that is as much higher.
    """

    def __init__(self) -> None:
        self.happened: list[_Death] = []

    def settled(self, stretches: Sequence[TracedStretch]) -> tuple[TracedStretch, ...]:
        backward_at = {t.key.call_id: i for i, t in enumerate(stretches) if t.key.in_backward}
        last_forward = max(i for i, t in enumerate(stretches) if not t.key.in_backward)
        later: Counter[int] = Counter()
        earlier: Counter[int] = Counter()
        released: Counter[StretchKey] = Counter()
        for death in self.happened:
            if death.birthplace.in_backward:
                continue
            if death.place == last_forward:
                released[death.birthplace] += death.num_bytes
            own = backward_at.get(death.birthplace.call_id, -1)
            if last_forward < death.place < own:
                later[death.place] += death.num_bytes
                earlier[own] += death.num_bytes
        return tuple(
            replace(
                traced,
                stretch=_shifted(traced.stretch, not_yet_dead=later[i], dead_at_start=earlier[i]),
                released_bytes=released[traced.key],
            )
            for i, traced in enumerate(stretches)
        )


def _shifted(stretch: Stretch, *, not_yet_dead: int, dead_at_start: int) -> Stretch:
    if not (not_yet_dead or dead_at_start):
        return stretch
    delta = stretch.delta_bytes + not_yet_dead - dead_at_start
    return replace(stretch, delta_bytes=delta, rise_bytes=max(stretch.rise_bytes - dead_at_start, delta, 0))
