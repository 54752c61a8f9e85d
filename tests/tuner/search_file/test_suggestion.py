from __future__ import annotations

import pytest

from tuner.search_file.suggestion import did_you_mean, nearest_name


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("memory_cpa", "memory_cap"),
        ("MEMORY_CAP", "memory_cap"),
        ("AdamW", "adamw"),
        ("polices", "policies"),
        ("xyz", None),
    ],
)
def test_the_name_most_alike_is_found(wrong: str, nearest: str | None) -> None:
    assert nearest_name(wrong, ["model", "memory_cap", "adamw", "policies"]) == nearest


def test_a_message_ends_with_the_name_where_there_is_one() -> None:
    assert did_you_mean("modle", ["model"]) == "; did you mean model?"
    assert did_you_mean("xyz", ["model"]) == ""
    assert nearest_name("vision", ["torchvision"], similarity=0.8) is None


def test_other_names_of_a_device_are_known() -> None:
    assert nearest_name("GPU", ("auto", "cpu", "cuda", "npu")) == "cuda"
    assert nearest_name("gpu", ("cpu", "npu")) == "npu"
