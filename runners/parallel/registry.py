"""Name of a strategy -> the model as its ranks train it."""

from __future__ import annotations

import torch
from torch import nn

from runners.parallel.base import ParallelModel
from runners.parallel.ranks import RankGroup, Ranks
from runners.parallel.single import SingleModel
from runners.trial import WorkloadSpec
from search_spaces.policy import RecomputePolicy


def parallelize(
    model: nn.Module, spec: WorkloadSpec, ranks: Ranks, device: torch.device, policy: RecomputePolicy | None
) -> ParallelModel:
    """Divides the model over the ranks, in place; a process alone trains it as it is, whatever the strategy.

    Args:
        policy: The one that is in force already; it may decide how the model is divided.
    """
    if not isinstance(ranks, RankGroup):
        return SingleModel(model)
    # torch's own code for several ranks takes a second to load, which a process alone need not pay.
    if spec.strategy == "fsdp2":
        from runners.parallel.fsdp2 import Fsdp2Model

        return Fsdp2Model(model, ranks.mesh, spec.sharded_lists, policy)
    if spec.strategy == "pipeline":
        from runners.parallel.pipeline import PipelineModel

        assert spec.pipeline_cut is not None, "trials of a pipeline are told where the model is cut"
        return PipelineModel(model, ranks, spec.pipeline_cut, device, policy)
    from runners.parallel.ddp import DdpModel

    return DdpModel(model, device)
