"""Which devices a user made visible is what a trial sees, whether Ray hands out devices or not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: In a process of its own, since this session may have a cluster already. Prints what the model saw.
_PROGRAM = """
import sys
from runners.base import WorkloadError
from runners.ray_runner import RayRunner, RayRunnerOptions
from runners.trial import InspectionSpec, WorkloadSpec

names = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"]
workload = WorkloadSpec(
    model_factory="surroundings.py:showing", model_args={"names": names}, base_dir=sys.argv[1], device="cpu"
)
runner = RayRunner(RayRunnerOptions(resources_per_trial={"CPU": 1}))
try:
    runner.inspect(InspectionSpec(workload=workload, timeout_s=60.0))
except WorkloadError as error:
    print(str(error).rpartition("RuntimeError: ")[2])
finally:
    runner.close()
"""


@pytest.mark.ray
@pytest.mark.slow
def test_a_trial_that_asks_for_no_device_sees_those_that_the_user_made_visible() -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.endswith("_VISIBLE_DEVICES")},
        "CUDA_VISIBLE_DEVICES": "5,7",
        "ASCEND_RT_VISIBLE_DEVICES": "2",
    }
    command = [sys.executable, "-c", _PROGRAM, str(Path(__file__).parent / "models")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.strip() == "CUDA_VISIBLE_DEVICES=5,7, HIP_VISIBLE_DEVICES=None, ASCEND_RT_VISIBLE_DEVICES=2"
