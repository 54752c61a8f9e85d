"""Peak FLOP/s of devices by name, one published source per row; what is not published here is not known.

Dense figures with accumulation in 32 bits, as PyTorch computes: vendors' headlines often count sparsity, which doubles
them. Ascend devices are missing, since no public data sheet gives theirs per chip.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

TERA = 1e12


@dataclass(frozen=True)
class PeakFlops:
    """One kind of device.

    Attributes:
        name: Pattern of the whole name that the driver gives; slices of a device (MIG) have names of their own and are
            not it.
        teraflops_per_second: By the type that products are computed in; ``tf32`` is float32 on tensor cores.
        source: Document that says so.
    """

    name: str
    teraflops_per_second: Mapping[str, float]
    source: str


_HOPPER_SXM = {"bfloat16": 989.5, "float16": 989.5, "tf32": 494.5, "float32": 67.0, "float64": 67.0}
_AMPERE = {"bfloat16": 312.0, "float16": 312.0, "tf32": 156.0, "float32": 19.5, "float64": 19.5}

PEAKS: tuple[PeakFlops, ...] = (
    PeakFlops(
        r"NVIDIA B200",
        {"bfloat16": 2250.0, "float16": 2250.0, "tf32": 1125.0},
        "NVIDIA HGX platform, HGX B200 (8 GPUs, with sparsity): nvidia.com/en-us/data-center/hgx",
    ),
    PeakFlops(
        r"NVIDIA H200",
        _HOPPER_SXM,
        "NVIDIA H200 data sheet, H200 SXM (with sparsity): nvidia.com/en-us/data-center/h200",
    ),
    PeakFlops(
        r"NVIDIA H100 80GB HBM3",
        _HOPPER_SXM,
        "NVIDIA H100 data sheet, H100 SXM (with sparsity): nvidia.com/en-us/data-center/h100",
    ),
    PeakFlops(
        r"NVIDIA H100 NVL",
        {"bfloat16": 835.5, "float16": 835.5, "tf32": 417.5, "float32": 60.0, "float64": 60.0},
        "NVIDIA H100 product page, specifications, H100 NVL (with sparsity): nvidia.com/en-us/data-center/h100",
    ),
    PeakFlops(
        r"NVIDIA H100 PCIe",
        {"bfloat16": 756.5, "float16": 756.5, "tf32": 378.0, "float32": 51.0, "float64": 51.0},
        "NVIDIA H100 data sheet of 2022, H100 PCIe (with sparsity): resources.nvidia.com/en-us-tensor-core",
    ),
    PeakFlops(
        r"NVIDIA A100(-SXM4-\d+GB|-PCIE-\d+GB| 80GB PCIe)",
        _AMPERE,
        "NVIDIA A100 data sheet: nvidia.com/en-us/data-center/a100",
    ),
    PeakFlops(
        r"NVIDIA A30",
        {"bfloat16": 165.0, "float16": 165.0, "tf32": 82.0, "float32": 10.3, "float64": 10.3},
        "NVIDIA A30 data sheet: "
        "nvidia.com/content/dam/en-zz/Solutions/data-center/products/a30-gpu/pdf/a30-datasheet.pdf",
    ),
    PeakFlops(
        r"NVIDIA A40",
        {"bfloat16": 149.7, "float16": 149.7, "tf32": 74.8, "float32": 37.4},
        "NVIDIA A40 data sheet: nvidia.com/en-us/data-center/a40",
    ),
    PeakFlops(
        r"NVIDIA A10",
        {"bfloat16": 125.0, "float16": 125.0, "tf32": 62.5, "float32": 31.2},
        "NVIDIA A10 data sheet: "
        "nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/datasheet-new/nvidia-a10-datasheet.pdf",
    ),
    PeakFlops(
        r"NVIDIA L40S",
        {"bfloat16": 362.05, "float16": 362.05, "tf32": 183.0, "float32": 91.6},
        "NVIDIA L40S data sheet: nvidia.com/en-us/data-center/l40s",
    ),
    PeakFlops(
        r"NVIDIA L40",
        {"bfloat16": 181.05, "float16": 181.05, "tf32": 90.5, "float32": 90.5},
        "NVIDIA L40 data sheet: nvidia.com/en-us/data-center/l40",
    ),
    PeakFlops(
        r"NVIDIA L4",
        {"bfloat16": 121.0, "float16": 121.0, "tf32": 60.0, "float32": 30.3},
        "NVIDIA L4 product page, specifications (with sparsity): nvidia.com/en-us/data-center/l4",
    ),
    PeakFlops(
        r"NVIDIA GeForce RTX 4090",
        {"bfloat16": 165.2, "float16": 165.2, "tf32": 82.6, "float32": 82.6},
        "NVIDIA Ada GPU architecture whitepaper, appendix A",
    ),
    PeakFlops(
        r"NVIDIA GeForce RTX 3090",
        {"bfloat16": 71.2, "float16": 71.2, "tf32": 35.6, "float32": 35.6},
        "NVIDIA RTX Blackwell GPU architecture whitepaper, table 3, and GA102 GPU architecture whitepaper, appendix A",
    ),
    PeakFlops(
        r"Tesla V100-SXM2-\d+GB",
        {"float16": 125.0, "float32": 15.7, "float64": 7.8},
        "NVIDIA V100 data sheet, V100 SXM2: "
        "images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf",
    ),
    PeakFlops(
        r"Tesla V100-PCIE-\d+GB",
        {"float16": 112.0, "float32": 14.0, "float64": 7.0},
        "NVIDIA V100 data sheet, V100 PCIe: "
        "images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf",
    ),
    PeakFlops(
        r"Tesla T4",
        {"float16": 65.0, "float32": 8.1},
        "NVIDIA T4 data sheet: nvidia.com/en-us/data-center/tesla-t4",
    ),
)


def peak_flops_per_second(device_name: str, compute_type: str) -> float | None:
    """What the device computes at most; None where no source is listed for it.

    Args:
        device_name: As the driver gives it.
        compute_type: ``bfloat16``, ``float16``, ``tf32``, ``float32`` or ``float64``.
    """
    for peak in PEAKS:
        if re.fullmatch(peak.name, device_name):
            teraflops = peak.teraflops_per_second.get(compute_type)
            return None if teraflops is None else teraflops * TERA
    return None
