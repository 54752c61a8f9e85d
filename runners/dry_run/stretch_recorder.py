"""Divides a running micro-batch into stretches: each block's forward and backward, and what lies between."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from runners.dry_run.deaths import Death, Deaths
from runners.dry_run.fake_values import NoDryRunError
from runners.dry_run.live_memory import CountedStorage, LiveMemory
from runners.dry_run.step_trace import StretchKey, TracedStretch
from runners.inspection.call_trace import hidden_of
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
        self.stretches: list[TracedStretch] = []
        self.deaths = Deaths()
        self._phase: Phase | None = None
        self._key: StretchKey | None = None
        self._waiting_key: StretchKey | None = None
        self._start_bytes = 0
        self._gradient_bytes = 0
        self._open_blocks = 0
        #: Sequence number from which on nodes of the graph belong to the stretch beside it.
        self._first_nodes: list[int] = []
        self._owners: list[StretchKey] = []

    @contextmanager
    def recording(self, model: nn.Module) -> Iterator[None]:
        """Within the context the hooks are in place; the micro-batch begins with the forward phase."""
        hooks: list[Any] = []
        seen: set[int] = set()
        for index, blocks in enumerate(self._lists):
            for position, block in enumerate(blocks):
                if id(block) not in seen:
                    seen.add(id(block))
                    begin = self._on_call(index, position)
                    hooks.append(block.register_forward_pre_hook(begin, prepend=True, with_kwargs=True))
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
        def begin(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._phase is not Phase.FORWARD:
                return
            if self._open_blocks:
                raise NoDryRunError("a block is called inside another one")
            self._open_blocks += 1
            call = len(self.calls[list_index])
            self.calls[list_index].append(position)
            key = StretchKey("forward", list_index, call, False)
            self._switch(key)
            given = args[0] if args else next(iter(kwargs.values()), None)
            storage = self._memory.find(given) if isinstance(given, torch.Tensor) else None
            if storage is not None and storage.consumer is None:
                storage.consumer = key
            self._owns_from_now(StretchKey("backward", list_index, call, True))

        return begin

    def _on_return(self, _module: nn.Module, _args: Any, output: Any) -> None:
        if self._phase is Phase.FORWARD:
            hidden = hidden_of(output)
            storage = None if hidden is None else self._memory.find(hidden)
            if storage is not None:
                storage.is_output = True
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

    def _on_death(self, storage: CountedStorage) -> None:
        if isinstance(storage.birthplace, StretchKey) and storage.birthplace != self._key:
            consumer = storage.consumer if isinstance(storage.consumer, StretchKey) else None
            place = len(self.stretches)
            self.deaths.add(Death(place, storage.birthplace, consumer, storage.is_output, storage.num_bytes))

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
        self.stretches.append(TracedStretch(self._key, stretch, cut.num_operations))
        self._key = None
