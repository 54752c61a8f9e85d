"""What libraries do otherwise because a tensor is fake, put right for the length of a dry run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from runners.dry_run.live_memory import LiveMemory


@contextmanager
def taken_for_real(memory: LiveMemory | None = None) -> Iterator[None]:
    """Within the context the model takes the path that it takes with data.

    Args:
        memory: Counts the random generator's states that recompute regions keep: no operation makes them.
    """
    with ExitStack() as stack:
        stack.enter_context(_transformers_sees_no_fakes())
        stack.enter_context(_failures_are_not_logged())
        stack.enter_context(_grouped_products_of_any_type())
        if memory is not None:
            stack.enter_context(_rng_states_counted(memory))
        yield


@contextmanager
def _transformers_sees_no_fakes() -> Iterator[None]:
    """transformers (seen in 5.24) takes a fake tensor as a sign that it is being traced, and builds other masks then.

    Drop this when its `is_tracing` no longer asks `is_fake_tensor`.
    """
    module: Any = sys.modules.get("transformers.utils.import_utils")
    original = getattr(module, "is_fake_tensor", None)
    if original is None:
        yield
        return
    module.is_fake_tensor = lambda _: False
    try:
        yield
    finally:
        module.is_fake_tensor = original


@contextmanager
def _grouped_products_of_any_type() -> Iterator[None]:
    """torch (seen in 2.13) refuses fake tensors of other types than bfloat16 in `grouped_mm`, which real ones may have.

    Mixtures of experts in transformers run it. Drop this when `_meta_grouped_mm_common` takes float32.
    """
    module: Any = torch._meta_registrations
    original = getattr(module, "_meta_grouped_mm_common", None)
    if original is None:
        yield
        return

    def of_any_type(mat_a: Any, mat_b: Any, scale_a: Any, scale_b: Any, **options: Any) -> Any:
        if scale_a is not None or mat_a.dtype == torch.bfloat16:
            return original(mat_a, mat_b, scale_a, scale_b, **options)
        return module._create_grouped_mm_output_tensor(mat_a, mat_b, options.get("offs"), options.get("out_dtype"))

    module._meta_grouped_mm_common = of_any_type
    try:
        yield
    finally:
        module._meta_grouped_mm_common = original


@contextmanager
def _failures_are_not_logged() -> Iterator[None]:
    """An operator that refuses fake tensors raises, and torch prints the traceback besides."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled


@contextmanager
def _rng_states_counted(memory: LiveMemory) -> Iterator[None]:
    """Checkpoint and fork_rng both ask `torch.get_rng_state`, by that name."""
    original = torch.get_rng_state

    def get_rng_state() -> torch.Tensor:
        state = original()
        memory.hold_as_made(state)
        return state

    torch.get_rng_state = get_rng_state
    try:
        yield
    finally:
        torch.get_rng_state = original
