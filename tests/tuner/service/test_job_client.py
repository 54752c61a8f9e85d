from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tuner.service.job_client import JobClient, ServiceError

HAS_JOB_SERVER = all(importlib.util.find_spec(name) for name in ("aiohttp_cors", "opencensus", "virtualenv"))


def test_address_that_is_no_job_servers_is_refused() -> None:
    with pytest.raises(ServiceError, match=r"--address is 'head:6379'; allowed is .* http://head\.example:8265"):
        JobClient("head:6379")


def test_nobody_at_the_address_is_said_in_one_line() -> None:
    with pytest.raises(
        ServiceError, match=r"--address is http://127\.0\.0\.1:9, but no job server answers there"
    ) as found:
        JobClient("http://127.0.0.1:9")
    assert len(found.value.lines) == 1


MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()

def build():
    return Model()

def batch(micro_batch_size):
    return {"x": torch.randn(micro_batch_size, 8)}
"""
SEARCH = """
study: {study}
model: {{factory: model.py:build}}
batch: {{global_batch_size: 4, micro_batch_sizes: [4], factory: model.py:batch}}
memory_cap: 80MiB
placement: {{actions: [none, block]}}
search: {{num_trials: 3, sampler: grid}}
measurement: {{min_steps: 2, max_steps: {max_steps}, relative_spread: 0.0001}}
runner: {{priority: 2.0}}
output_dir: {output_dir}
"""


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def is_open(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment of `tune` beside a cluster with a job server; its address is in there, too."""
    folder = tmp_path_factory.mktemp("c")
    port, agent_port = free_port(), free_port()
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64, "RAY_worker_niceness": "0"}
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus", "1"),
        *("--port", str(free_port()), "--dashboard-port", str(port), "--node-ip-address", "127.0.0.1"),
        *("--temp-dir", str(folder), "--object-store-memory", "100000000"),
        *("--dashboard-agent-listen-port", str(agent_port)),
    ]
    cluster = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 150
        # Whoever takes jobs comes up after the server that hands them on.
        for awaited in (port, agent_port):
            while not is_open(awaited):
                assert time.monotonic() < deadline, "the cluster did not come up"
                time.sleep(0.5)
        yield {**environment, "SERVICE": f"http://127.0.0.1:{port}"}
    finally:
        cluster.terminate()
        cluster.wait(timeout=60)


def tune(service: dict[str, str], *words: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "tuner", *words, "--address", service["SERVICE"]]
    done = subprocess.run(command, env=service, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def status(service: dict[str, str], study: str) -> Any:
    return json.loads(tune(service, "status", study, "--json"))


def write(folder: Path, study: str, *, max_steps: int) -> Path:
    folder.mkdir()
    (folder / "model.py").write_text(MODEL)
    # On the import path of our own processes it would stand in for Python's.
    (folder / "types.py").write_text("raise RuntimeError('this is the wrong module')")
    file = folder / "search.yaml"
    file.write_text(SEARCH.format(study=study, max_steps=max_steps, output_dir=folder / "results"))
    return file


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not HAS_JOB_SERVER, reason="job servers need ray[default], the extra `cluster`")
def test_studies_are_submitted_followed_stopped_and_resumed(service: dict[str, str], tmp_path: Path) -> None:
    short = write(tmp_path / "short", "short", max_steps=3)
    assert tune(service, "submit", str(short)) == "short\n"
    long = write(tmp_path / "long", "long", max_steps=1_000_000)
    assert json.loads(tune(service, "submit", str(long), "--json"))["job"] == "long-1"
    refused = tune(service, "submit", str(long), code=2)
    assert refused == ""
    log = tune(service, "logs", "short", "-f")
    assert "short: fastest within 80.0 MiB" in log
    assert status(service, "short")["status"] == "SUCCEEDED"
    results = json.loads((tmp_path / "short/results/short/results.json").read_text())
    assert results["status"] == "finished"
    assert {trial["verification"]["verdict"] for trial in results["trials"]} == {"MATCH"}
    deadline = time.monotonic() + 240
    while not (tmp_path / "long/results/long/results.json").exists():
        assert time.monotonic() < deadline, tune(service, "logs", "long")
        time.sleep(1)
    tune(service, "stop", "long")
    while not status(service, "long")["ended_at"]:
        assert time.monotonic() < deadline, tune(service, "logs", "long")
        time.sleep(1)
    results = json.loads((tmp_path / "long/results/long/results.json").read_text())
    assert results["status"] == "interrupted"
    (tmp_path / "long/search.yaml").write_text(
        SEARCH.format(study="long", max_steps=1_000_000, output_dir=tmp_path / "long/results")
    )
    assert json.loads(tune(service, "submit", str(long), "--resume", "--json"))["job"] == "long-2"
    listed = json.loads(tune(service, "list", "--json"))
    assert [(job["study"], job["job"]) for job in listed] == [
        ("long", "long-2"),
        ("long", "long-1"),
        ("short", "short-1"),
    ]
    tune(service, "stop", "long")
    assert tune(service, "status", "lnog", code=2) == ""
