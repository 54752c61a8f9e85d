"""MFU and HFU: FLOP/s of a step over the device's peak, without recompute and with it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from runners.devices.base import Device
from runners.measure.flops import StepFlops

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@dataclass(frozen=True)
class Utilization:
    """Shares of the peak, 0 to 1 (arXiv:2204.02311, appendix B).

    Attributes:
        mfu: What the model needs. This is what a policy can gain.
        hfu: What was executed, rebuilds included; recompute raises it for nothing.
    """

    mfu: float
    hfu: float


def utilization(
    flops: StepFlops, step_time_s: float, device: Device, model: nn.Module, compute_type: torch.dtype
) -> Utilization | None:
    """Of one step; None where nothing was counted or the device's peak is not known.

    Args:
        compute_type: Of the products: autocast's where there is autocast, else that of the parameters.
    """
    name = _unit_name(compute_type, model)
    peak = None if name is None else device.peak_flops_per_second(name)
    if peak is None or not flops.plain:
        return None
    possible = peak * step_time_s
    return Utilization(mfu=flops.plain / possible, hfu=(flops.plain + flops.recomputed) / possible)


def _unit_name(compute_type: torch.dtype, model: nn.Module) -> str | None:
    """The type as tables of peaks name it; None where parts of the model compute in another one than the rest."""
    if compute_type is not torch.float32:
        return str(compute_type).removeprefix("torch.")
    products_in_tf32 = torch.get_float32_matmul_precision() != "highest"
    has_convolutions = any(isinstance(module, _CONVOLUTIONS) for module in model.modules())
    if has_convolutions and torch.backends.cudnn.allow_tf32 != products_in_tf32:
        return None
    return "tf32" if products_in_tf32 else "float32"
