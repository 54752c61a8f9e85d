"""Run with the allocation probe preloaded: prints, for each training set-up, the measured peak and the counted one."""

from __future__ import annotations

import ctypes
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runners.devices.cpu import CpuDevice
from runners.rig import Rig, RigStep
from runners.trial import WorkloadSpec
from runners.workloads.load import load_workload
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region

MODELS = str(Path(__file__).resolve().parents[1] / "models")
GPT = {
    "model_factory": "runners.workloads.gpt:gpt",
    "model_args": {"n_layer": 4, "n_embd": 32, "n_head": 2, "vocab_size": 100},
    "sequence_length": 32,
}
UNITS = (("attention", "attn"), ("mlp", "mlp"))


def cases() -> Iterator[tuple[str, WorkloadSpec, RecomputePolicy]]:
    for action in ("none", "attention+mlp", "block"):
        yield f"gpt {action}", WorkloadSpec(**GPT), policy(4, 4, Region(0, 3, action))
    yield "gpt segments", WorkloadSpec(**GPT), policy(4, 4, Region(0, 3, "segment", 3))
    yield "gpt accumulation", WorkloadSpec(**GPT), policy(1, 4, Region(1, 3, "block"))
    yield "gpt bfloat16", WorkloadSpec(**GPT, dtype="bfloat16"), policy(2, 4, Region(0, 3, "block"))
    yield "gpt autocast", WorkloadSpec(**GPT, autocast="bfloat16"), policy(2, 4, Region(0, 3, "mlp"))
    for name, args in [
        ("sgd", {"lr": 0.1}),
        ("sgd", {"lr": 0.1, "momentum": 0.9}),
        ("adafactor", {"lr": 0.01}),
        ("adamw", {"lr": 0.01, "amsgrad": True}),
    ]:
        workload = WorkloadSpec(**GPT, optimizer_name=name, optimizer_args=args)
        yield f"gpt {name} {args}", workload, policy(2, 4, Region(0, 1, "block"))
    convolutions = WorkloadSpec(model_factory="normalization.py:training_statistics", base_dir=MODELS)
    yield "convolutions none", convolutions, policy(4, 3)
    yield "convolutions block", convolutions, policy(4, 3, Region(0, 2, "block"))
    for factory in ("words", "tied_words", "recomputes_itself"):
        workload = WorkloadSpec(model_factory=f"operators.py:{factory}", base_dir=MODELS)
        yield factory, workload, policy(4, 3 if factory == "recomputes_itself" else 2, Region(0, 1, "block"))
    sparse = {"optimizer_name": "sgd", "optimizer_args": {"lr": 0.1}}
    yield (
        "sparse",
        WorkloadSpec(model_factory="operators.py:words", model_args={"sparse": True}, base_dir=MODELS, **sparse),
        policy(2, 2, Region(0, 1, "block")),
    )
    recurrent = WorkloadSpec(model_factory="recurrent.py:recurrent", base_dir=MODELS)
    yield "recurrent block", recurrent, policy(4, 2, Region(0, 1, "block"))
    for factory in ("kept_graph", "call_counter", "moving_centre"):
        workload = WorkloadSpec(model_factory=f"state.py:{factory}", base_dir=MODELS)
        yield factory, workload, policy(4, 2, Region(0, 1, "block"))
    yield "frozen", WorkloadSpec(model_factory="freezing.py:adapters", base_dir=MODELS), policy(4, 3)


def policy(micro_batch_size: int, num_blocks: int, *regions: Region) -> RecomputePolicy:
    shape = BatchShape.split(global_batch_size=4, micro_batch_size=micro_batch_size)
    return RecomputePolicy(shape, (BlockListPlacement("blocks", num_blocks, UNITS, regions),))


def main() -> None:
    probe = ctypes.CDLL(None)
    for function in (probe.probe_live, probe.probe_peak):
        function.restype = ctypes.c_long
    device = CpuDevice()
    for name, spec, placed in cases():
        gc.freeze()  # Walking through the libraries' objects for every case would take most of the time.
        workload = load_workload(spec)
        before, before_counted = device.live_bytes(), probe.probe_live()
        rig = Rig(workload, spec, device, placed)
        size = placed.batch.micro_batch_size
        batches: list[dict[str, Any]] = [
            workload.make_batch(size) for _ in range(placed.batch.gradient_accumulation_steps)
        ]
        peak = device.measure_peak(RigStep(rig, batches), live_bytes_before_trial=before)
        probe.probe_reset_peak()
        rig.step.run(batches)
        counted = probe.probe_peak() - before_counted
        del rig, batches
        left = device.live_bytes() - before
        kinds = peak.by_kind.model_dump() if peak.by_kind is not None else None
        row = {"name": name, "measured": peak.allocated_bytes, "counted": counted, "left": left, "kinds": kinds}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
