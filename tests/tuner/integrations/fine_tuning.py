"""What both trainers fine-tune here: a small GPT-2 with dropout, its data, and what a study promises for a policy."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

from runners.devices.cpu import CpuDevice
from runners.measure.allocation_trace import AllocationRecorder
from runners.trial import MeasurementSpec, TrialSpec, TrialStatus, Verdict, WorkloadSpec
from runners.worker import TrialWorker
from search_spaces.policy import BatchShape, BlockListPlacement, RecomputePolicy, Region

NUM_STEPS = 20
NUM_BLOCKS = 6
SEQUENCE_LENGTH = 64
ARGS = {"n_layer": NUM_BLOCKS, "n_embd": 64, "n_head": 2, "vocab_size": 128, "n_positions": SEQUENCE_LENGTH}
UNITS = (("attention", "attn"), ("mlp", "mlp"))
BATCH = BatchShape.split(global_batch_size=8, micro_batch_size=4)
MIX = (Region(0, 2, "segment", 3), Region(3, 3, "mlp"), Region(4, 5, "block"))


def policy(*regions: Region) -> RecomputePolicy:
    return RecomputePolicy(BATCH, (BlockListPlacement("transformer.h", NUM_BLOCKS, UNITS, regions),)).canonical()


def build_model() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(**ARGS, use_cache=False)).train()


class RandomTokens(Dataset):  # type: ignore[type-arg]  # of dicts
    """As many samples as the steps take, the same ones each time."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        size = (NUM_STEPS * BATCH.global_batch_size, SEQUENCE_LENGTH)
        self.tokens = torch.randint(0, ARGS["vocab_size"], size, generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def promised_peak_bytes(of: RecomputePolicy) -> int:
    """What a trial of a study measures for the policy, which it must have proven."""
    spec = TrialSpec(
        trial_number=0,
        policy=of,
        workload=WorkloadSpec(
            model_factory="huggingface:gpt2", model_args=ARGS, sequence_length=SEQUENCE_LENGTH, device="cpu"
        ),
        measurement=MeasurementSpec(warmup_steps=0, min_steps=1, max_steps=1),
    )
    result = TrialWorker().run(spec)
    assert (result.status, result.reason) == (TrialStatus.COMPLETED, None)
    assert result.verification is not None
    assert result.verification.verdict is Verdict.MATCH
    assert result.peak_memory_bytes is not None
    return result.peak_memory_bytes


class PeakOfOneStep:
    """The peak of one optimizer step, counted as a study counts it.

    The step before it is recorded as well: what is given back must have been seen being taken.
    """

    def __init__(self) -> None:
        self._device = CpuDevice()
        self._before = self._device.live_bytes()
        self._recorder = AllocationRecorder()
        self._open = ExitStack()
        self._alive = 0
        self.peak_bytes = 0

    def start_recording(self) -> None:
        self._open.enter_context(self._recorder.recording())

    def start_step(self) -> None:
        self._alive = self._device.live_bytes()
        self._open.enter_context(self._recorder.interval("measured"))

    def end_step(self) -> None:
        self._open.close()
        trace = self._recorder.trace()
        gained, _ = trace.since(trace.named("measured")[0].start_ns).peak()
        self.peak_bytes = self._alive - self._before + gained
