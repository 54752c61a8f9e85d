from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tuner.config import SearchConfig
from tuner.search_file.load import load_search_file
from tuner.service.submission import entrypoint, write_submission


def config(folder: Path, **changes: Any) -> SearchConfig:
    data = {
        "study": "mine",
        "model": {"factory": "model.py:build"},
        "batch": {"global_batch_size": 2},
        "memory_cap": "1GiB",
        "storage": "postgresql://tuner:secret@db.example/tuning",
        **changes,
    }
    return SearchConfig.model_validate(data, context={"base_dir": folder})


def files(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def test_search_file_and_code_are_sent_below_a_folder_that_is_not_on_the_import_path(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    (mine / "runs/old").mkdir(parents=True)
    (mine / "runs/old/results.json").write_text("{}")
    (mine / "model.py").write_text("def build(): ...")
    (mine / "types.py").write_text("")
    write_submission(config(mine), tmp_path / "sent")
    assert files(tmp_path / "sent") == ["study/model.py", "study/search.yaml", "study/types.py"]


def test_the_driver_there_reads_the_same_search_on_its_own_cluster(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def build(): ...")
    original = config(tmp_path, runner={"priority": 3.0})
    write_submission(original, tmp_path / "sent")
    there = load_search_file(tmp_path / "sent/study/search.yaml")
    assert there.runner.ray_address == "auto"
    assert there.output_dir == "~/recompute-tuner-runs"
    assert there.storage == original.storage
    same = {"output_dir", "runner"}
    assert there.model_dump(exclude=same) == original.model_dump(exclude=same)
    assert there.runner.model_dump(exclude={"ray_address"}) == original.runner.model_dump(exclude={"ray_address"})


def test_folder_that_is_the_same_everywhere_stays(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def build(): ...")
    write_submission(config(tmp_path, output_dir="/shared/runs"), tmp_path / "sent")
    assert yaml.safe_load((tmp_path / "sent/study/search.yaml").read_text())["output_dir"] == "/shared/runs"


def test_command_of_the_driver() -> None:
    assert entrypoint(resume=False) == "python -m tuner run study/search.yaml"
    assert entrypoint(resume=True) == "python -m tuner run study/search.yaml --resume"
