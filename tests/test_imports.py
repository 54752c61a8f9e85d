"""Who may import whom, what loading a package costs, and what an installation puts on a user's machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("tuner", "search_spaces", "runners", "mlflow_config")
HEAVY = {"torch", "ray", "mlflow", "optuna", "transformers", "plotly", "pandas", "numpy"}


def loaded_by(statement: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after the statement."""
    program = f"{statement}\nimport sys, json\nprint(json.dumps(sorted({{n.partition('.')[0] for n in sys.modules}})))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(ended.stdout))


def test_imports_run_one_way() -> None:
    lint = shutil.which("lint-imports", path=str(Path(sys.executable).parent)) or shutil.which("lint-imports")
    assert lint is not None, "import-linter is part of the development environment"
    ended = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("room", ROOMS)
def test_a_package_loads_nothing_heavy(room: str) -> None:
    assert loaded_by(f"import {room}") & HEAVY == set()


def test_the_program_loads_nothing_heavy() -> None:
    assert loaded_by("import tuner.cli") & HEAVY == set()


@pytest.mark.parametrize("module", ["policy", "policy_file", "choices", "two_action", "registry", "ablation"])
def test_search_spaces_are_plain_python(module: str) -> None:
    assert loaded_by(f"import search_spaces.{module}") & (HEAVY | {"tuner", "runners", "mlflow_config"}) == set()


def test_showing_and_exporting_a_study_loads_no_framework() -> None:
    loaded = loaded_by("import tuner.commands.show, tuner.commands.export")
    assert loaded & (HEAVY - {"numpy"}) == set()


def test_nothing_else_is_installed_at_the_top_level(tmp_path: Path) -> None:
    from setuptools import find_packages

    include = [f"{room}*" for room in ROOMS]
    configured = (ROOT / "pyproject.toml").read_text()
    assert f"include = {json.dumps(include)}" in configured
    found = {name.partition(".")[0] for name in find_packages(str(ROOT), include=include)}
    assert found == set(ROOMS)
