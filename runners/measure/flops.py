"""FLOPs that a training step really executes, recompute included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count


def _cpu_attention_flops(query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]  # torch leaves it unannotated


def _cpu_attention_backward_flops(
    grad_out: Any, query: Any, key: Any, value: Any, *args: Any, out_shape: Any = None, **kwargs: Any
) -> int:
    return int(sdpa_backward_flop_count(grad_out, query, key, value))  # type: ignore[no-untyped-call]  # as above


def count_flops(run: Callable[[], object]) -> int:
    """FLOPs of every matrix product, convolution and attention that ``run`` executes, backward and rebuilds included.

    A multiply and an add count as two. Element-wise work counts as nothing, as in `torch.utils.flop_counter`, whose
    table this extends by the CPU's fused attention (missing there up to torch 2.13).
    """
    aten = torch.ops.aten
    table = {
        aten._scaled_dot_product_flash_attention_for_cpu: _cpu_attention_flops,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _cpu_attention_backward_flops,
    }
    with FlopCounterMode(display=False, custom_mapping=table) as counter:
        run()
    return int(counter.get_total_flops())
