from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runners.base import RunnerError
from tuner.config import SearchConfig
from tuner.shipped_code import code_to_ship


def config(folder: Path, factory: str, **runner: Any) -> SearchConfig:
    data = {
        "model": {"factory": factory},
        "batch": {"global_batch_size": 2},
        "memory_cap": "1GiB",
        "runner": {"ray_address": "head.example:6379", **runner},
    }
    return SearchConfig.model_validate(data, context={"base_dir": folder})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    (folder / "config").mkdir(parents=True)
    (folder / "model.py").write_text("def build(): ...")
    (tmp_path / "other.py").write_text("def build(): ...")
    return folder


@pytest.mark.parametrize("factory", ["model.py:build", "model:build", "huggingface:config"])
def test_folder_of_a_factory_beside_the_search_file_is_sent(folder: Path, factory: str) -> None:
    package = code_to_ship(config(folder, factory))
    assert package is not None
    assert package.folder == str(folder)
    assert package.num_bytes == len("def build(): ...")


@pytest.mark.parametrize("factory", ["huggingface:gpt2", "torchvision:resnet18", "installed.package:build"])
def test_nothing_is_sent_where_nodes_need_no_file_of_the_users(folder: Path, factory: str) -> None:
    assert code_to_ship(config(folder, factory)) is None


@pytest.mark.parametrize("runner", [{"ship_code": False}, {"ray_address": None}], ids=str)
def test_nothing_is_sent_where_nodes_have_it(folder: Path, runner: dict[str, Any]) -> None:
    assert code_to_ship(config(folder, "model.py:build", **runner)) is None


def test_factory_outside_of_the_folder_is_refused(folder: Path) -> None:
    with pytest.raises(
        RunnerError, match=r"model\.factory is \.\./other\.py:build, outside of .*mine.*ship_code: false"
    ):
        code_to_ship(config(folder, "../other.py:build"))
