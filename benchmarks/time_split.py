"""Do the parts of a step add up, and is recompute what it should be? Each policy against two other ways to tell.

    python benchmarks/time_split.py

The model's blocks are large enough for what torch adds to each region not to matter.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import rich
import torch
from rich.table import Table
from torch import nn

from runners.devices.cpu import CpuDevice
from runners.measure.flops import count_step_flops
from runners.measure.step_time import PhaseClock, PhaseTimes, time_once
from runners.rig import Rig
from runners.trial import WorkloadSpec
from runners.workloads.load import load_workload
from search_spaces.policy import SEGMENT, BatchShape, BlockListPlacement, RecomputePolicy, Region

NUM_BLOCKS = 4
WORKLOAD = WorkloadSpec(
    model_factory="runners.workloads.gpt:gpt",
    model_args={"n_layer": NUM_BLOCKS, "n_embd": 256, "n_head": 4, "vocab_size": 512, "dropout": 0.0},
    sequence_length=256,
    device="cpu",
)
UNITS = {"attention": "attn", "mlp": "mlp"}
BATCHES = (BatchShape(4, 1, 1, 4), BatchShape(1, 4, 1, 4))
_NUM_ROUNDS = 9


@dataclass(frozen=True)
class Round:
    """One step in its parts, and right after it the forward of what it rebuilt.

    Attributes:
        parts: Seconds of the step.
        step_s: The step itself.
        rebuilt_forward_s: Forward of the rebuilt modules alone, in a plain model.
    """

    parts: PhaseTimes
    step_s: float
    rebuilt_forward_s: float

    @property
    def parts_share(self) -> float:
        parts = self.parts
        return (parts.forward_s + parts.backward_s + parts.recompute_s + parts.optimizer_s) / self.step_s


def main() -> None:
    table = Table("policy", "step", "parts / step", "recompute / forward of the same modules", "/ by FLOPs")
    for batch in BATCHES:
        for action in ("attention", "mlp", "attention+mlp", "block", SEGMENT):
            table.add_row(*_row(action, batch))
    rich.print(table)
    rich.print(
        "By FLOPs: recompute's share of forward and recompute together, as timed over as counted. Element-wise work "
        "and attention's softmax have no FLOPs. A rebuild ends with the last tensor that backward asks for, so the "
        "last projection of an MLP is not run again."
    )


def _row(action: str, batch: BatchShape) -> tuple[str, ...]:
    device, workload = CpuDevice(), load_workload(WORKLOAD)
    region = Region(0, NUM_BLOCKS - 1, action, segment_size=2 if action == SEGMENT else None)
    placement = BlockListPlacement("blocks", NUM_BLOCKS, tuple(UNITS.items()), (region,))
    policy = RecomputePolicy(batch, (placement,))
    rig = Rig(workload, WORKLOAD, device, policy)
    micro_batches = [workload.make_batch(batch.micro_batch_size) for _ in range(batch.gradient_accumulation_steps)]
    flops = count_step_flops(lambda: rig.step.run(micro_batches), rig.phases)
    # Backward takes twice the FLOPs of forward.
    counted = flops.recomputed / (flops.plain / 3 + flops.recomputed)
    calls = _rebuilt_calls(rig, action, micro_batches[0])
    rounds = [_round(rig, micro_batches, calls, device) for _ in range(_NUM_ROUNDS)]
    timed = statistics.median(r.parts.recompute_s / (r.parts.forward_s + r.parts.recompute_s) for r in rounds)
    against_forward = statistics.median(r.parts.recompute_s / r.rebuilt_forward_s for r in rounds)
    return (
        policy.summary(),
        f"{statistics.median(r.step_s for r in rounds) * 1e3:.0f} ms",
        f"{statistics.median(r.parts_share for r in rounds):.2%}",
        f"{against_forward:.2f}",
        f"{timed / counted:.2f}",
    )


def _rebuilt_calls(rig: Rig, action: str, micro_batch: dict[str, torch.Tensor]) -> list[tuple[nn.Module, torch.Tensor]]:
    """The modules that the action rebuilds, each with an input as it gets it."""
    calls: list[tuple[nn.Module, torch.Tensor]] = []
    paths = [UNITS[unit] for unit in action.split("+")] if action not in ("block", SEGMENT) else [""]
    modules = [block.get_submodule(path) for block in rig.model.blocks for path in paths]
    with rig.placed(None):
        hooks = [
            module.register_forward_pre_hook(lambda m, args: calls.append((m, args[0].detach().requires_grad_())))
            for module in modules
        ]
        rig.step.forward(micro_batch)
        for hook in hooks:
            hook.remove()
    return calls


def _round(
    rig: Rig,
    micro_batches: Sequence[dict[str, torch.Tensor]],
    calls: Sequence[tuple[nn.Module, torch.Tensor]],
    device: CpuDevice,
) -> Round:
    clock = PhaseClock(device)
    with rig.phases.watched_by(clock):
        step_s = time_once(lambda: rig.step.run(micro_batches), device).time_s
    clock.end_step(step_s)
    with rig.placed(None):
        forward_s = sum(time_once(lambda m=module, x=x: m(x), device).time_s for module, x in calls)
    return Round(clock.split(step_s), step_s, forward_s * len(micro_batches))


if __name__ == "__main__":
    main()
