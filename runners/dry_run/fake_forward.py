"""Forward passes of a model on fake tensors, for who wants to know what it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from runners.devices.cpu import CpuDevice
from runners.dry_run.fake_model import FakeModelWorkload
from runners.dry_run.fake_values import FakeValues
from runners.dry_run.stand_ins import taken_for_real
from runners.rig import Rig
from runners.trial import WorkloadSpec
from runners.workloads.base import Workload
from runners.workloads.followed_size import refuse_fixed_batches
from runners.workloads.seeding import seed_everything


@contextmanager
def fake_forward(
    workload: Workload, spec: WorkloadSpec, micro_batch_size: int, *, other_micro_batch_size: int | None = None
) -> Iterator[tuple[nn.Module, Callable[[], torch.Tensor]]]:
    """The model, and a function that runs one forward pass of it on a batch of that size.

    Args:
        other_micro_batch_size: Whose batches must be of other shapes; None asks for nothing.

    Raises:
        WorkloadError: The model or its batch cannot be built.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    rig = Rig(FakeModelWorkload(workload, mode), spec, CpuDevice())
    seed_everything(spec.seed)
    real = workload.make_batch(micro_batch_size)
    if other_micro_batch_size is not None:
        refuse_fixed_batches(workload, micro_batch_size, other_micro_batch_size)
    batch = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, real)
    del real
    with taken_for_real(), mode, FakeValues():
        yield rig.model, lambda: rig.step.forward(batch)
