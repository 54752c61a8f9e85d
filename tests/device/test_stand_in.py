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
def test_all_checks_pass_as_one_script_and_leave_their_figures(
    environment: dict[str, str], name: str, tmp_path: Path
) -> None:
    output = tmp_path / "checks.json"
    done = subprocess.run(
        ["bash", str(Path(__file__).parent / "run_all.sh"), str(output)],
        env={**environment, stand_in.NAME_VARIABLE: name, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(output.read_text())
    missed = [check for check in report["checks"] if check["outcome"] != "passed"]
    assert (done.returncode, missed) == (0, [])
    assert (report["device_kind"], report["device"]) == (name, stand_in.DEVICE_NAME)
    assert report["num_passed"] == len(report["checks"]) > 20
    assert [left_out["device_kind"] for left_out in report["not_run"]] == [k for k in ("cuda", "npu") if k != name]
    assert any("predicted_peak_relative_errors" in check["measured"] for check in report["checks"])


def test_check_that_takes_its_process_down_costs_no_other_check(environment: dict[str, str], tmp_path: Path) -> None:
    """A driver that dies at a refused allocation, as some do."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'pytest' in sys.orig_argv:\n"
        "    import torch\n"
        "    empty = torch.empty\n"
        "    torch.empty = lambda *size, **options: os.abort() if size == (10**13,) else empty(*size, **options)\n"
    )
    output = tmp_path / "checks.json"
    done = subprocess.run(
        ["bash", str(Path(__file__).parent / "run_all.sh"), str(output)],
        env={
            **environment,
            stand_in.NAME_VARIABLE: "stand_in",
            "PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]]),
            "PYTEST_ADDOPTS": "-k memory",  # Some checks before it and some after.
        },
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(output.read_text())
    failed = [check for check in report["checks"] if check["outcome"] != "passed"]
    assert done.returncode == 1
    assert [(check["name"], check["reason"]) for check in failed] == [
        ("TestOther::test_refused_allocation_is_out_of_memory", "its process ended with signal 6")
    ]
    names = [check["name"] for check in report["checks"]]
    assert 0 < names.index(failed[0]["name"]) < len(names) - 1
    assert report["num_passed"] == len(names) - 1
