from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator: run the script itself")
def test_without_an_accelerator_the_report_says_so(tmp_path: Path) -> None:
    output = tmp_path / "checks.json"
    script = Path(__file__).parent / "run_all.sh"
    done = subprocess.run(
        ["bash", str(script), str(output)],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(output.read_text())
    assert done.returncode == 3
    assert (report["device_kind"], report["device"], report["checks"]) == (None, None, [])
    assert report["torch"] == torch.__version__
    assert [left_out["device_kind"] for left_out in report["not_run"]] == ["cuda", "npu"]
    assert "not run here: cuda, since torch finds no accelerator on this machine, not cuda" in done.stdout
