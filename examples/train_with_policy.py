"""Trains the quickstart's model with a policy and without it: the losses are the same, the memory is not.

    python examples/train_with_policy.py runs/quickstart/policy.yaml

Only the two marked lines are needed in training code of one's own. The rest measures.
"""

from __future__ import annotations

import argparse
import json
import os

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # before torch: its profiler's notices are of no use here

import torch

from runners.devices.cpu import CpuDevice
from runners.measure.allocation_trace import AllocationRecorder
from runners.workloads.gpt import gpt
from tuner import RecomputePolicy, apply_policy, load_policy

MODEL_ARGS = {"n_layer": 8, "n_embd": 64, "n_head": 4, "vocab_size": 256, "dropout": 0.1}
SEQUENCE_LENGTH = 64
NUM_STEPS = 5


def train(policy: RecomputePolicy, *, with_policy: bool) -> tuple[list[float], int]:
    """Loss of each step, and the most bytes alive at once in the last one."""
    device = CpuDevice()
    alive_before = device.live_bytes()
    torch.manual_seed(0)
    model = gpt(**MODEL_ARGS).train()
    if with_policy:
        apply_policy(model, policy)  # <- places what load_policy has read; names and state_dict stay as they are
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    accumulation_steps = policy.batch.gradient_accumulation_steps
    micro_batches = [
        model.example_batch(policy.batch.micro_batch_size, SEQUENCE_LENGTH) for _ in range(accumulation_steps)
    ]

    def step() -> float:
        total = 0.0
        for batch in micro_batches:
            loss = model(**batch) / accumulation_steps
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    losses = [step() for _ in range(NUM_STEPS - 1)]
    alive = device.live_bytes() - alive_before
    recorder = AllocationRecorder()
    with recorder.recording():
        losses.append(step())
    gained, _ = recorder.trace().peak()
    return losses, alive + gained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("policy_file", help="policy.yaml of a study of the quickstart's model")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    policy = load_policy(arguments.policy_file)  # <- reads what the search found
    losses, peak = train(policy, with_policy=True)
    plain_losses, plain_peak = train(policy, with_policy=False)
    promised = (policy.measured or {}).get("peak_memory_bytes")
    if arguments.json:
        figures = {"losses": losses, "plain_losses": plain_losses, "peak_memory_bytes": peak}
        print(json.dumps({**figures, "plain_peak_memory_bytes": plain_peak, "promised_peak_memory_bytes": promised}))
        return
    print(f"policy: {policy.summary()}")
    for number, (ours, theirs) in enumerate(zip(losses, plain_losses, strict=True), start=1):
        verdict = "equal" if ours == theirs else "DIFFERENT"
        print(f"step {number}: loss {ours:.6f} with the policy, {theirs:.6f} without: {verdict}")
    print(f"peak: {peak / 2**20:.1f} MiB with the policy, {plain_peak / 2**20:.1f} MiB without")
    if promised is not None:
        print(f"the study promised {promised / 2**20:.1f} MiB: {peak / promised - 1:+.2%}")


if __name__ == "__main__":
    main()
