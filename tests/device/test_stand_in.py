"""An accelerator of another name, registered as packages of hardware vendors do it, passes what real ones must pass."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

STAND_IN = Path(__file__).parent / "stand_in" / "stand_in.py"
_spec = importlib.util.spec_from_file_location("stand_in", STAND_IN)
assert _spec is not None
assert _spec.loader is not None
stand_in: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(stand_in)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("g++") is None, reason="compiling the stand-in needs g++"),
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of processes whose torch finds the device; compiled once per machine and release of torch."""
    import torch

    folder = tmp_path_factory.mktemp("site")
    stand_in.install(folder)
    build = Path.home() / ".cache" / "recompute-tuner-tests" / f"stand-in-{torch.__version__}"
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ["PYTHONPATH"]]),
        stand_in.BUILD_VARIABLE: os.environ.get(stand_in.BUILD_VARIABLE, str(build)),
    }


@pytest.mark.parametrize("name", ["npu", "stand_in"])
def test_contract_of_accelerators_holds(environment: dict[str, str], name: str) -> None:
    contract = f"{Path(__file__).parent / 'test_accelerator.py'}::TestStandIn"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", contract],
        env={**environment, stand_in.NAME_VARIABLE: name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout


def test_all_checks_run_as_one_script_and_leave_their_figures(environment: dict[str, str], tmp_path: Path) -> None:
    output = tmp_path / "checks.json"
    done = subprocess.run(
        ["bash", str(Path(__file__).parent / "run_all.sh"), str(output)],
        env={**environment, stand_in.NAME_VARIABLE: "npu", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(output.read_text())
    failed = [check for check in report["checks"] if check["outcome"] != "passed"]
    assert (done.returncode, failed) == (0, [])
    assert (report["device_kind"], report["device"]) == ("npu", stand_in.DEVICE_NAME)
    assert report["num_passed"] == len(report["checks"]) > 10
    assert [left_out["device_kind"] for left_out in report["not_run"]] == ["cuda"]
    assert any("predicted_peak_relative_errors" in check["measured"] for check in report["checks"])
    assert report["seconds"] < 480


SEARCH = {
    "study": "other",
    "model": {
        "factory": "runners.workloads.gpt:gpt",
        "args": {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 64, "max_sequence_length": 32},
    },
    "batch": {"global_batch_size": 4, "micro_batch_sizes": [4], "sequence_length": 32},
    "placement": {"actions": ["none", "block"]},
    "search": {"num_trials": 4, "sampler": "grid"},
    "measurement": {"min_steps": 2, "max_steps": 3},
    "memory_cap": "50%",
}


def test_study_takes_the_accelerator_that_torch_finds(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "search.yaml"
    file.write_text(yaml.safe_dump({**SEARCH, "output_dir": str(tmp_path / "runs")}))
    done = subprocess.run(
        [sys.executable, "-m", "tuner", "run", str(file), "--json"],
        env={**environment, stand_in.NAME_VARIABLE: "stand_in"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results = json.loads(done.stdout)
    environment_of_study = results["environment"]
    assert (environment_of_study["device_kind"], environment_of_study["device"]) == ("stand_in", stand_in.DEVICE_NAME)
    assert results["memory_cap_bytes"] == 2**30
    trials = results["trials"]
    assert {trial["verification"]["verdict"] for trial in trials} == {"MATCH"}
    for trial in trials:
        assert trial["device"] == stand_in.DEVICE_NAME
        assert trial["peak_memory_bytes"] == trial["peak_reserved_bytes"] >= trial["peak_allocated_bytes"] > 0
        assert (trial["mfu"], trial["hfu"]) == (None, None)
    plain, block = (next(t for t in trials if t["policy_summary"] == f"{a} @4x1") for a in ("none", "block"))
    assert block["peak_allocated_bytes"] < plain["peak_allocated_bytes"]
