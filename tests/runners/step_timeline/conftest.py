"""How tests of this room trace a step of a small model in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from runners.step_timeline.records import StepTimeline, StepTimelineSpec, TracedStep
from runners.step_timeline.trace_step import trace_step
from runners.worker_session import WorkerSession
from search_spaces.model_shape import BlockList, ModelShape
from search_spaces.policy import Region

Regions = Sequence[Region] | str
GPT_ARGS = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64, "attention_dropout": 0.1}


@pytest.fixture
def model(trials: Callable[..., Any]) -> Callable[..., Any]:
    """Trials of a model of kept.py, or of the built-in GPT; two blocks, four samples."""

    def model(name: str, **options: Any) -> Any:
        if name == "gpt":
            options = {"sequence_length": 16, **options}
            return trials("runners.workloads.gpt:gpt", GPT_ARGS, global_batch_size=4, options=options)
        if name == "sparse":  # Adam takes no sparse gradients.
            options = {"optimizer_name": "sgd", "optimizer_args": {"lr": 0.1}, **options}
        return trials(f"kept.py:{name}", batch="kept.py:batch", global_batch_size=4, options=options)

    return model


@pytest.fixture
def ask(model: Callable[..., Any]) -> Callable[..., StepTimeline]:
    """Steps of a model under a few placements."""

    def ask(name: str, *placements: Regions, num_blocks: int | None = None, **options: Any) -> StepTimeline:
        trial = model(name, **options)
        policies = [trial.policy(_regions(regions), micro=4) for regions in placements]
        units = (("attention", "attn"), ("mlp", "mlp")) if name in ("blocks", "gpt") else (("mlp", "mlp"),)
        spec = StepTimelineSpec(
            workload=trial.workload(),
            policy=policies[0],
            also=tuple(policies[1:]),
            shape=ModelShape(1, (BlockList("blocks", "Block", 2, units),)),
            num_blocks=num_blocks,
        )
        return trace_step(spec, WorkerSession(spec.workload, global_batch_size=4))

    return ask


@pytest.fixture
def trace(ask: Callable[..., StepTimeline]) -> Callable[..., TracedStep]:
    """One step of a model."""

    def trace(name: str, regions: Regions = "none", **options: Any) -> TracedStep:
        return ask(name, regions, **options).steps[0]

    return trace


def _regions(regions: Regions) -> Regions:
    return (Region(0, 1, "segment", 2),) if regions == "segment" else regions
