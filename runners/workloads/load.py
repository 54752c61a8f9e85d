"""``model`` and ``batch`` of search.yaml -> a workload. The one place that knows every kind of factory."""

from __future__ import annotations

from pathlib import Path

import torch

from runners.base import WorkloadError
from runners.trial import WorkloadSpec
from runners.workloads.base import BatchMaker, ModelSource, Workload
from runners.workloads.configured_workload import PARAMETER_DTYPES, ConfiguredWorkload
from runners.workloads.huggingface import HuggingFaceFactory
from runners.workloads.nearest import known_names
from runners.workloads.python_factory import BatchFactory, PythonFactory
from runners.workloads.timm import TimmFactory
from runners.workloads.torchvision import TorchvisionFactory


def load_workload(spec: WorkloadSpec) -> Workload:
    """The workload that the spec names; models and batches are made when asked for.

    Raises:
        WorkloadError: A factory, one of its arguments or the dtype does not exist.
    """
    if spec.dtype not in PARAMETER_DTYPES:
        raise WorkloadError(f"model.dtype is {spec.dtype}; {known_names(spec.dtype, PARAMETER_DTYPES)}")
    dtype = PARAMETER_DTYPES[spec.dtype]
    batches: BatchMaker | None = None
    if spec.batch_factory is not None:
        batches = BatchFactory(spec.batch_factory, base_dir=Path(spec.base_dir), sequence_lengths=spec.sequence_lengths)
    return ConfiguredWorkload(
        _model_source(spec, dtype),
        batches=batches,
        sequence_lengths=spec.sequence_lengths,
        dtype=dtype,
        seed=spec.seed,
        factory=spec.model_factory,
    )


def _model_source(spec: WorkloadSpec, dtype: torch.dtype) -> ModelSource:
    kind, _, name = spec.model_factory.partition(":")
    base_dir = Path(spec.base_dir)
    if kind == "huggingface":
        return HuggingFaceFactory(
            name,
            spec.model_args,
            base_dir=base_dir,
            dtype=dtype,
            sequence_lengths=spec.sequence_lengths,
            makes_batches=spec.batch_factory is None,
        )
    if kind == "torchvision":
        return TorchvisionFactory(name, spec.model_args, dtype=dtype)
    if kind == "timm":
        return TimmFactory(name, spec.model_args, dtype=dtype)
    return PythonFactory(spec.model_factory, spec.model_args, base_dir=base_dir, sequence_lengths=spec.sequence_lengths)
