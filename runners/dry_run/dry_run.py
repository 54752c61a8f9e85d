"""A model, its optimizer and steps of it on fake tensors: the peak of any policy without data and without a device.

Scratch that a kernel takes and gives back is found by running that one operation for real. Where the device is no CPU,
it is not counted, and sizes are those of a CPU's kernels all the same: on an accelerator attention may be another
kernel that saves other tensors, the optimizer may work on all parameters at once (``foreach``), and a caching allocator
rounds up.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from runners.devices.cpu import CpuDevice
from runners.devices.registry import has_host_apart
from runners.dry_run.fake_model import FakeModelWorkload
from runners.dry_run.gradients import CompleteGradients
from runners.dry_run.kernel_scratch import KernelScratch
from runners.dry_run.live_memory import LiveMemory
from runners.dry_run.stand_ins import taken_for_real
from runners.dry_run.step_trace import StepTrace
from runners.dry_run.stretch_recorder import StretchRecorder
from runners.inspection.block_lists import container_at
from runners.inspection.call_trace import tensors_in
from runners.rig import Rig
from runners.trial import WorkloadSpec
from runners.workloads.base import Workload
from runners.workloads.seeding import seed_everything
from search_spaces.memory_profile import Stretch
from search_spaces.policy import RecomputePolicy


@dataclass(frozen=True)
class StepTotals:
    """What no policy changes.

    Attributes:
        gradient_bytes: Of all gradients of a step.
        optimizer_state_bytes: After the first update.
        update: The optimizer's step, with all gradients alive from before; they are dropped in it.
    """

    parameter_bytes: int
    gradient_bytes: int
    optimizer_state_bytes: int
    update: Stretch


@dataclass(frozen=True)
class _Inputs:
    """A micro-batch on fake tensors.

    Attributes:
        num_bytes: Of one micro-batch, without what all of them share.
    """

    batch: dict[str, Any]
    num_bytes: int


@dataclass(frozen=True)
class _Opened:
    """A model that has taken its first step."""

    rig: Rig
    gradients: CompleteGradients
    totals: StepTotals


class DryRun:
    """Takes steps of one workload on fake tensors. Whatever the workload's device, they stand for a CPU's.

    The first one takes the longest: the model is built, and a step is taken that leaves everything behind that a first
    step leaves (optimizer states, tables that the model makes when it first needs them).

    Args:
        tries_kernels: As in a `DryRunSpec`.

    Every method raises `NoDryRunError` where the model asks for values, and what the model or an operator raises where
    those cannot do without data; make a new one after that.
    """

    def __init__(self, workload: Workload, spec: WorkloadSpec, *, tries_kernels: bool = True) -> None:
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._has_host_apart = has_host_apart(spec.device)
        # Another device's kernels cannot be tried on this one.
        self._scratch = KernelScratch() if tries_kernels and not self._has_host_apart else None
        self._memory = LiveMemory(self._scratch)
        self._workload = FakeModelWorkload(workload, self._mode)
        self._spec = spec
        self._inputs: dict[int, _Inputs] = {}
        self._opened: _Opened | None = None
        #: On fake tensors; None until the first step.
        self.model: nn.Module | None = None

    @property
    def unseen_kernels(self) -> tuple[str, ...]:
        """Operators met so far that were too large to be tried; empty where no scratch is counted."""
        return () if self._scratch is None else tuple(sorted(self._scratch.too_large))

    def totals(self, micro_batch_size: int) -> StepTotals:
        """What no policy changes; the size is that of the first step where none was taken yet."""
        return self._open(micro_batch_size).totals

    def peak_bytes(self, policy: RecomputePolicy) -> int:
        """Most bytes alive in a whole step under the policy, with optimizer states from a step before.

        The last micro-batch is the one that is run: it meets whatever those before it met, and complete gradients.
        """
        trace = self.trace(policy)
        update = self.totals(policy.batch.micro_batch_size).update
        return max(trace.peak_bytes, trace.end_bytes + update.rise_bytes)

    def trace(self, policy: RecomputePolicy, lists: Sequence[str] = (), *, plain: StepTrace | None = None) -> StepTrace:
        """The last micro-batch of a step under the policy, stretch by stretch.

        Args:
            lists: Paths of the lists of blocks by which the step is divided.
            plain: Of the same lists without recompute: tells which blocks save their own outputs. None where this
                is that trace.
        """
        opened = self._open(policy.batch.micro_batch_size)
        opened.rig.place(policy)
        inputs = self._inputs_of(policy.batch.micro_batch_size)
        num_micro_batches = policy.batch.gradient_accumulation_steps
        accumulates = num_micro_batches > 1
        with self._running():
            if accumulates:
                opened.gradients.make_alive(lambda: opened.rig.step.accumulate([inputs.batch]))
            static_bytes = self._memory.live_bytes + num_micro_batches * inputs.num_bytes
            recorder = self._record(opened.rig, inputs, lists)
        opened.rig.step.drop_gradients()
        return _step_trace(recorder, accumulates, static_bytes, plain)

    def _open(self, micro_batch_size: int) -> _Opened:
        if self._opened is None:
            self._opened = self._first_step(micro_batch_size)
        return self._opened

    def _first_step(self, micro_batch_size: int) -> _Opened:
        rig = Rig(self._workload, self._spec, CpuDevice())
        if self._has_host_apart:
            rig.phases.on_host_copy = self._memory.move_elsewhere
        self.model = rig.model
        memory = self._memory
        for parameter in rig.model.parameters():
            memory.hold(parameter)
        parameter_bytes = memory.live_bytes
        for buffer in rig.model.buffers():
            memory.hold(buffer)
        inputs = self._inputs_of(micro_batch_size)
        with self._running():
            self._record(rig, inputs, ())
            gradients = CompleteGradients(rig.model)
            before_bytes = memory.live_bytes
            rig.optimizer.step()
            optimizer_state_bytes = memory.live_bytes - before_bytes
            rig.step.drop_gradients()
            gradients.make_alive(lambda: rig.step.accumulate([inputs.batch]))
            update = self._update(rig)
        _hold_tables(rig.model, memory)
        gc.freeze()  # Walks through the libraries' own objects take a fifth of the time otherwise.
        totals = StepTotals(parameter_bytes, -update.delta_bytes, optimizer_state_bytes, update)
        return _Opened(rig, gradients, totals)

    def _update(self, rig: Rig) -> Stretch:
        self._memory.cut()
        before_bytes = self._memory.live_bytes
        rig.optimizer.step()
        rig.step.drop_gradients()
        cut = self._memory.cut()
        return Stretch(cut.live_bytes - before_bytes, cut.highest_bytes - before_bytes, cut.flops)

    def _record(self, rig: Rig, inputs: _Inputs, lists: Sequence[str]) -> StretchRecorder:
        modules = [container_at(rig.model.get_submodule(path), path).blocks for path in lists]
        recorder = StretchRecorder(self._memory, modules)
        with recorder.recording(rig.model), rig.phases.watched_by(recorder):
            rig.step.accumulate([inputs.batch])
        return recorder

    @contextmanager
    def _running(self) -> Iterator[None]:
        with taken_for_real(self._memory), self._mode, self._memory:
            yield

    def _inputs_of(self, micro_batch_size: int) -> _Inputs:
        if micro_batch_size not in self._inputs:
            self._inputs[micro_batch_size] = self._make_inputs(micro_batch_size)
        return self._inputs[micro_batch_size]

    def _make_inputs(self, micro_batch_size: int) -> _Inputs:
        batches = []
        for part in (1, 2):
            seed_everything(self._spec.seed + part)
            batches.append(self._workload.make_batch(micro_batch_size))
        first, second = map(_storages_of, batches)
        # What two batches share is the workload's own, say a data set that both are a view of.
        num_bytes = sum(size for address, size in first.items() if address not in second)
        fake = torch.utils._pytree.tree_map_only(torch.Tensor, self._mode.from_tensor, batches[0])
        for tensor in tensors_in(fake):
            if tensor.layout == torch.strided:
                self._memory.leave_out(tensor)
        return _Inputs(fake, num_bytes)


def _step_trace(recorder: StretchRecorder, accumulates: bool, static_bytes: int, plain: StepTrace | None) -> StepTrace:
    if plain is None:
        keeps_output = tuple(recorder.deaths.keeps_output(recorder.stretches, i) for i in range(len(recorder.calls)))
    else:
        keeps_output = plain.keeps_output
    stretches = recorder.deaths.settled(recorder.stretches, keeps_output)
    calls = tuple(map(tuple, recorder.calls))
    return StepTrace(accumulates, static_bytes, stretches, calls, keeps_output)


def _storages_of(batch: Mapping[str, Any]) -> dict[int, int]:
    """Address and bytes of every storage of a real batch."""
    storages = (tensor.untyped_storage() for tensor in tensors_in(batch) if tensor.layout == torch.strided)
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def _hold_tables(model: nn.Module, memory: LiveMemory) -> None:
    """Counts tensors that modules keep as plain attributes, such as masks: no operation of a later step makes them."""
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, FakeTensor) and value.layout == torch.strided:
                memory.hold(value)
