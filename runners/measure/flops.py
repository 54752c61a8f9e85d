"""FLOPs that a training step really executes, recompute included."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from runners.measure.phases import Phase, PhaseSwitch


@dataclass(frozen=True)
class StepFlops:
    """FLOPs of a step: of what plain training takes, and of the rebuilds on top of it."""

    plain: int
    recomputed: int


def count_step_flops(run: Callable[[], object], phases: PhaseSwitch) -> StepFlops:
    """FLOPs of every matrix product, convolution and attention that ``run`` executes, a step under a policy say.

    A multiply and an add count as two. Element-wise work counts as nothing, as in `torch.utils.flop_counter`, whose
    table this extends by the CPU's fused attention (missing there up to torch 2.13).

    Args:
        phases: The switch that the recompute regions report to.
    """
    with _counter() as counter:
        watcher = _RecomputeWatcher(counter)
        with phases.watched_by(watcher):
            run()
    return StepFlops(int(counter.get_total_flops()) - watcher.flops, watcher.flops)


class _RecomputeWatcher:
    """Adds up what the counter gains during rebuilds."""

    def __init__(self, counter: FlopCounterMode) -> None:
        self._counter = counter
        self.flops = 0

    @contextmanager
    def watching(self, phase: Phase) -> Iterator[None]:
        before = self._counter.get_total_flops()
        try:
            yield
        finally:
            if phase is Phase.RECOMPUTE:
                self.flops += int(self._counter.get_total_flops() - before)


def flop_formulas() -> Mapping[Any, Callable[..., int]]:
    """Operator -> its FLOPs, called as the operator is and with its output as ``out_val``; others count as nothing."""
    formulas: Mapping[Any, Callable[..., int]] = _counter().flop_registry
    return formulas


def _counter() -> FlopCounterMode:
    aten = torch.ops.aten
    table = {
        aten._scaled_dot_product_flash_attention_for_cpu: _cpu_attention_flops,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _cpu_attention_backward_flops,
    }
    return FlopCounterMode(display=False, custom_mapping=table)


def _cpu_attention_flops(query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]  # torch leaves it unannotated


def _cpu_attention_backward_flops(
    grad_out: Any, query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any
) -> int:
    return int(sdpa_backward_flop_count(grad_out, query, key, value))  # type: ignore[no-untyped-call]  # as above
