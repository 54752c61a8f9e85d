"""What exists beside this project for trading memory against time, each put on a fresh model by its own means."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tool_report import Failure
from torch import nn
from torch._functorch import config as functorch_config
from torch._inductor.compile_fx import compile_fx
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from runners.apply_policy import apply_policy
from search_spaces.policy import RecomputePolicy

PLAIN, OURS = "no recompute", "recompute-tuner"
#: Shares of the compiler's memory budget that are tried. A whole model takes long to compile, so fewer there.
BLOCK_BUDGETS = (1.0, 0.75, 0.5, 0.25, 0.0)
MODEL_BUDGETS = (1.0, 0.75, 0.5, 0.1)
_ALONE = "micro-batch alone"
#: By what is compiled.
_COMPILERS = {"blocks": "torch.compile, blocks", "model": "torch.compile, model"}
#: What came of trying them in an environment of their own, with all that they require, under torch 2.13 on a CPU.
_ROCKMATE_NOTE = (
    "versions 2.0.0 of rockmate and rkgb, with all that they require, end at import: No module named 'rkgb.core' (the "
    "released package lacks that folder)"
)
_AUTOSAC_NOTE = (
    "with pulp its solver can be imported, but what it solves are times of operators, and without a CUDA device its "
    "estimator ends with 'Tried to instantiate dummy base class Event' or, in its other mode, with 'Roofline "
    "estimation needs to access CUDA capabilities'"
)
_ATEN = torch.ops.aten
_MATMULS = frozenset({_ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default, _ATEN.baddbmm.default})
_ATTENTION = frozenset(
    {
        _ATEN._scaled_dot_product_flash_attention.default,
        _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
        _ATEN._scaled_dot_product_efficient_attention.default,
        _ATEN._scaled_dot_product_cudnn_attention.default,
    }
)


@dataclass(frozen=True)
class Candidate:
    """One setting of one tool.

    Attributes:
        put_on: Changes a fresh model in place.
        trains_as: Name of the candidate whose gradients it has to give; None where nothing tells.
    """

    tool: str
    setting: str
    micro_batch_size: int
    put_on: Callable[[nn.Module], object]
    trains_as: str | None = None

    @property
    def name(self) -> str:
        return _name(self.tool, self.setting, self.micro_batch_size)


def existing_tools(
    blocks: Sequence[str], micro_batch_sizes: Sequence[int], *, with_compiler: bool
) -> Iterator[Candidate]:
    """Everything that needs no search.

    Args:
        blocks: Paths of the model's lists of blocks.
        micro_batch_sizes: Descending.
    """
    whole = micro_batch_sizes[0]
    plain = {size: Candidate(PLAIN, _ALONE, size, lambda _: None) for size in micro_batch_sizes}
    yield from plain.values()

    def by_hand(tool: str, setting: str, size: int, every: int, keeps: Callable[[], _Keeping] | None) -> Candidate:
        put_on = functools.partial(_recompute, blocks, every, keeps)
        return Candidate(tool, setting, size, put_on, plain[size].name)

    for size in micro_batch_sizes[:3]:
        yield by_hand("every block", "checkpoint", size, 1, None)
    for size in micro_batch_sizes[:2]:
        yield by_hand("every second block", "checkpoint", size, 2, None)
    for setting, keeps in (
        ("keep matmuls and attention", functools.partial(_Keeping, _MATMULS | _ATTENTION)),
        ("keep every second matmul", functools.partial(_Keeping, _MATMULS | _ATTENTION, every=2)),
        ("keep attention alone", functools.partial(_Keeping, _ATTENTION)),
    ):
        yield by_hand("operator presets", setting, whole, 1, keeps)
    if not with_compiler:
        return
    compiled: list[tuple[str, Sequence[float], Callable[[float, nn.Module], None]]] = [
        (_COMPILERS["blocks"], BLOCK_BUDGETS, functools.partial(_compile_blocks, blocks)),
        (_COMPILERS["model"], MODEL_BUDGETS, _compile_model),
    ]
    for tool, (full, *others), put_on in compiled:
        keeps_all = [
            Candidate(tool, _within(full), size, functools.partial(put_on, full)) for size in micro_batch_sizes[:3]
        ]
        yield from keeps_all
        # Compiled code draws random numbers its own way, so what keeps everything is the measure of the others.
        for budget in others:
            yield Candidate(tool, _within(budget), whole, functools.partial(put_on, budget), keeps_all[0].name)


def our_candidate(policy: RecomputePolicy) -> Candidate:
    """A policy as it would be put on in training."""

    def put_on(model: nn.Module) -> None:
        apply_policy(model, policy)

    placement, size = policy.summary().rpartition(" @")[0], policy.batch.micro_batch_size
    tool, setting = (PLAIN, _ALONE) if policy.compile is None else (_COMPILERS[policy.compile], _within(1))
    return Candidate(OURS, placement, size, put_on, _name(tool, setting, size))


def _name(tool: str, setting: str, micro_batch_size: int) -> str:
    return f"{tool}: {setting} @{micro_batch_size}"


def _within(budget: float) -> str:
    return f"budget {budget:g}"


def unusable_tools() -> list[Failure]:
    """Searching tools that do not run here as they are released, and what came of trying them."""
    failures = []
    if not _can_import("rockmate"):
        failures.append(Failure("Rockmate", _ROCKMATE_NOTE))
    if not torch.cuda.is_available():
        failures.append(Failure("AutoSAC (torch.distributed._tools.sac_ilp)", _AUTOSAC_NOTE))
    return failures


def _can_import(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


class _Keeping:
    """Which operators' outputs are kept, counted anew in each pass."""

    def __init__(self, operators: frozenset[Any], every: int = 1) -> None:
        self._operators = operators
        self._every = every
        self._counts = {False: 0, True: 0}

    def __call__(self, context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if operator not in self._operators:
            return CheckpointPolicy.PREFER_RECOMPUTE
        self._counts[context.is_recompute] += 1
        is_kept = self._counts[context.is_recompute] % self._every == 0
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


def _recompute(blocks: Sequence[str], every: int, keeps: Callable[[], _Keeping] | None, model: nn.Module) -> None:
    for index, block in enumerate(_blocks(model, blocks)):
        if index % every == 0:
            block.forward = functools.partial(_checkpointed, block.forward, keeps)


def _checkpointed(forward: Callable[..., Any], keeps: Callable[[], _Keeping] | None, *args: Any, **kwargs: Any) -> Any:
    if keeps is None:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)
    contexts = functools.partial(create_selective_checkpoint_contexts, keeps())
    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _compile_blocks(blocks: Sequence[str], budget: float, model: nn.Module) -> None:
    for block in _blocks(model, blocks):
        block.compile(dynamic=False, backend=_compiler(budget))


def _compile_model(budget: float, model: nn.Module) -> None:
    model.compile(dynamic=False, backend=_compiler(budget))


@functools.cache
def _compiler(budget: float) -> Callable[..., Any]:
    """The default compiler with its setting made; one for each budget, or all would share the first one's code."""

    def compile_within(graph: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Any:
        with functorch_config.patch(activation_memory_budget=budget):
            return compile_fx(graph, example_inputs)

    return compile_within


def _blocks(model: nn.Module, paths: Sequence[str]) -> list[nn.Module]:
    return [block for path in paths for block in model.get_submodule(path).children()]
