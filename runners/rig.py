"""A fresh model on the device with its optimizer, and a policy in force on it that can be exchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from runners.apply_policy import AppliedPolicy, apply_policy
from runners.base import WorkloadError
from runners.devices.base import Device, GradientStorages
from runners.measure.phases import PhaseSwitch
from runners.measure.training_step import TrainingStep
from runners.parallel.local_part import local_part
from runners.parallel.ranks import ALONE, Ranks
from runners.parallel.registry import parallelize
from runners.parallel.stage_policy import policy_of_stage
from runners.trial import WorkloadSpec
from runners.workloads.base import Workload
from search_spaces.policy import RecomputePolicy


class Rig:
    """What a trial trains.

    Args:
        policy: Placed on the model; None leaves the model as given.
        ranks: Those that train it; the model is divided over them as the spec's strategy says.
        divided_for: The policy whose division over ranks is taken; None takes that of ``policy``.
    """

    def __init__(
        self,
        workload: Workload,
        spec: WorkloadSpec,
        device: Device,
        policy: RecomputePolicy | None = None,
        *,
        ranks: Ranks = ALONE,
        divided_for: RecomputePolicy | None = None,
    ) -> None:
        self.phases = PhaseSwitch()
        self.model = workload.build_model()
        _refuse_untrainable(self.model)
        if ranks.size == 1 or spec.strategy not in ("fsdp2", "pipeline"):
            # What is divided moves part by part: the whole model need not fit the device.
            self.model = _on_device(self.model, device.torch_device)
        self._own_part = partial(_own_part, spec=spec, ranks=ranks)
        self._policy: RecomputePolicy | None = None
        self._applied: AppliedPolicy | None = None
        #: Policies that are compiled, taken off: put in force again they need not be compiled again.
        self._compiled: dict[RecomputePolicy, AppliedPolicy] = {}
        # Placed before the model is divided, as training code has to do it.
        self.place(policy)
        parallel = parallelize(self.model, spec, ranks, device.torch_device, divided_for or policy)
        self.optimizer = build_optimizer(self.model, spec)
        autocast = None if spec.autocast is None else getattr(torch, spec.autocast)
        self.step = TrainingStep(
            self.model,
            self.optimizer,
            workload,
            device=device.torch_device,
            autocast=autocast,
            phases=self.phases,
            parallel=parallel,
        )

    def takes(self, policy: RecomputePolicy | None) -> bool:
        """Whether the policy can be placed on this rig; one that divides the model otherwise needs a rig of its own."""
        return self.step.parallel.takes(policy)

    def place(self, policy: RecomputePolicy | None) -> None:
        """Takes off the policy in force and places this one."""
        if self._applied is not None:
            self._applied.undo()
        self._policy = policy
        self._applied = None
        if policy is None:
            return
        known = self._compiled.get(policy)
        if known is None:
            self._applied = apply_policy(
                self.model, self._own_part(policy), observer=self.phases, on_host_copy=self.phases.copied_to_host
            )
        else:
            known.redo()
            self._applied = known
        if policy.compile is not None:
            self._compiled[policy] = self._applied

    @contextmanager
    def placed(self, policy: RecomputePolicy | None) -> Iterator[None]:
        """Within the context this policy is in force, then the one from before again."""
        before = self._policy
        self.place(policy)
        try:
            yield
        finally:
            self.place(before)

    def static_bytes(self) -> dict[str, int]:
        """Bytes of parameters, buffers and optimizer states that this rank holds, each storage once, ties too."""
        seen: set[int] = set()

        def count(tensors: Iterator[torch.Tensor]) -> int:
            total = 0
            for tensor in tensors:
                storage = local_part(tensor).untyped_storage()
                if storage.data_ptr() not in seen:
                    seen.add(storage.data_ptr())
                    total += storage.nbytes()
            return total

        states = (value for state in self.optimizer.state.values() for value in state.values())
        return {
            "parameters": count(iter(self.model.parameters())),
            "buffers": count(iter(self.model.buffers())),
            "optimizer_states": count(value for value in states if isinstance(value, torch.Tensor)),
        }

    def gradient_storages(self) -> dict[int, int]:
        """Address and bytes of each gradient's storage."""
        gradients = (p.grad for p in self.model.parameters() if p.grad is not None)
        storages = (part.untyped_storage() for gradient in gradients for part in _strided_parts(local_part(gradient)))
        return {storage.data_ptr(): storage.nbytes() for storage in storages}


def _own_part(policy: RecomputePolicy, *, spec: WorkloadSpec, ranks: Ranks) -> RecomputePolicy:
    """What of the policy is placed on this rank's part of the model."""
    if ranks.size == 1 or spec.pipeline_cut is None:
        return policy
    return policy_of_stage(policy, spec.pipeline_cut, ranks.rank)


def _refuse_untrainable(model: torch.nn.Module) -> None:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise WorkloadError(f"model {type(model).__name__} has no parameter that requires a gradient; nothing to train")


def _on_device(model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """The model there; one that is there already is not touched, since fake parameters cannot be moved."""
    tensors = (*model.parameters(), *model.buffers())
    return model if all(tensor.device == device for tensor in tensors) else model.to(device)


def _strided_parts(gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What a gradient keeps its values in: itself, or the parts of a sparse one (an embedding's with ``sparse``)."""
    return (gradient._indices(), gradient._values()) if gradient.is_sparse else (gradient,)


class RigStep:
    """A rig's step as a device measures its memory."""

    def __init__(self, rig: Rig, micro_batches: Sequence[Mapping[str, Any]]) -> None:
        self.phases: PhaseSwitch = rig.phases
        self._rig = rig
        self._micro_batches = micro_batches

    def run(self, on_gradients_ready: Callable[[GradientStorages], None]) -> None:
        self._rig.step.run(
            self._micro_batches, gradients_ready=lambda _: on_gradients_ready(self._rig.gradient_storages())
        )

    def static_bytes(self) -> dict[str, int]:
        return self._rig.static_bytes()

    def gradient_bucket_bytes(self) -> int:
        return self._rig.step.parallel.gradient_bucket_bytes


def build_optimizer(model: torch.nn.Module, spec: WorkloadSpec) -> torch.optim.Optimizer:
    """The optimizer that the user named, over all parameters that require a gradient.

    Raises:
        WorkloadError: There is no such optimizer, it refuses its arguments, or nothing is trainable.
    """
    classes = {
        name.lower(): value
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
    }
    optimizer_class = classes.get(spec.optimizer_name.lower())
    if optimizer_class is None:
        raise WorkloadError(
            f"optimizer.name is {spec.optimizer_name!r}, which this torch does not have; "
            f"known are {', '.join(sorted(classes))}"
        )
    _refuse_untrainable(model)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        return optimizer_class(trainable, **spec.optimizer_args)
    except (TypeError, ValueError) as error:
        raise WorkloadError(
            f"optimizer.args {spec.optimizer_args} are refused by {optimizer_class.__name__}: {error}"
        ) from error
