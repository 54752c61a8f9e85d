from __future__ import annotations

import re

import pytest

from runners.devices.peak_flops import PEAKS, peak_flops_per_second


@pytest.mark.parametrize(
    ("name", "compute_type", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.5),
        ("NVIDIA H100 PCIe", "bfloat16", 756.5),
        ("NVIDIA H100 NVL", "bfloat16", 835.5),
        ("NVIDIA A100-SXM4-80GB", "float16", 312.0),
        ("NVIDIA A100 80GB PCIe", "tf32", 156.0),
        ("NVIDIA A100-PCIE-40GB", "float32", 19.5),
        ("NVIDIA L4", "bfloat16", 121.0),
        ("Tesla V100-SXM2-32GB", "float16", 125.0),
    ],
)
def test_dense_peak_of_a_listed_device(name: str, compute_type: str, teraflops: float) -> None:
    assert peak_flops_per_second(name, compute_type) == teraflops * 1e12


@pytest.mark.parametrize(
    ("name", "compute_type"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "bfloat16"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bfloat16"),
        ("NVIDIA RTX A1000", "bfloat16"),
        ("NVIDIA A10G", "bfloat16"),
        ("Ascend910B2", "bfloat16"),
        ("Tesla V100-SXM2-32GB", "bfloat16"),
        ("NVIDIA L4", "float64"),
    ],
)
def test_what_no_source_says_is_not_known(name: str, compute_type: str) -> None:
    assert peak_flops_per_second(name, compute_type) is None


def test_each_row_has_a_source_and_no_type_is_faster_than_half_precision() -> None:
    for peak in PEAKS:
        assert len(peak.source) > 10
        assert max(peak.teraflops_per_second.values()) == peak.teraflops_per_second["float16"]
        assert peak.teraflops_per_second.keys() <= {"bfloat16", "float16", "tf32", "float32", "float64"}


def test_no_name_fits_two_rows_and_every_row_is_somebodys() -> None:
    names = [
        *("NVIDIA B200", "NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL", "NVIDIA H100 PCIe", "NVIDIA A30"),
        *("NVIDIA A100-SXM4-80GB", "NVIDIA A40", "NVIDIA A10", "NVIDIA L40S", "NVIDIA L40", "NVIDIA L4", "Tesla T4"),
        *("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3090", "Tesla V100-SXM2-32GB", "Tesla V100-PCIE-16GB"),
    ]
    fits = [[bool(re.fullmatch(peak.name, name)) for peak in PEAKS] for name in names]
    assert [sum(row) for row in fits] == [1] * len(names)
    assert len(names) == len(PEAKS)
