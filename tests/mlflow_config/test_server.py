from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlflow_config import names
from mlflow_config.errors import TrackingError
from mlflow_config.recorder import RunOutcome, StudyRecorder
from mlflow_config.server import running_server, serve
from mlflow_config.settings import TrackingSettings, tracking_settings

_SERVE = """
import sys
from pathlib import Path
from mlflow_config.server import serve
from mlflow_config.settings import tracking_settings
serve(
    tracking_settings(output_dir=Path(sys.argv[1]), experiment="any"),
    port=int(sys.argv[2]),
    announce=lambda address: print(address, flush=True),
)
print("over", flush=True)
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _fetch(url: str, question: dict[str, Any] | None = None) -> bytes:
    data = None if question is None else json.dumps(question).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        body: bytes = answer.read()
    return body


def _addresses_listened_on(port: int) -> set[str]:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    rows += [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    listening = "0A"
    return {row[1].split(":")[0] for row in rows if row[3] == listening and int(row[1].split(":")[1], 16) == port}


def _children(pid: int) -> list[int]:
    own = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*own, *(grandchild for child in own for grandchild in _children(child))]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads sockets and processes from Linux's /proc")
def test_server_shows_the_store_on_this_machine_only_and_leaves_nothing(
    settings: TrackingSettings, open_recorder: Callable[..., StudyRecorder], tmp_path: Path
) -> None:
    recorder = open_recorder()
    for trial_number in range(3):
        recorder.record_trial(
            trial_number,
            outcome=RunOutcome.FINISHED,
            name=str(trial_number),
            params={},
            metrics={names.TOKENS_PER_SECOND: 10.0 * trial_number},
            tags={names.ON_FRONT: trial_number > 0},
        )
    recorder.record_study(texts={names.FRONT_FILE: "<p>the front"})
    recorder.finish(RunOutcome.FINISHED)

    port = _free_port()
    command = [sys.executable, "-c", _SERVE, str(tmp_path), str(port)]
    # The variable would show another store than the one that is announced.
    environment = {**os.environ, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "MLFLOW_STATIC_PREFIX": "/elsewhere"}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert server.stdout is not None
    try:
        address = server.stdout.readline().strip()
        assert address == f"http://127.0.0.1:{port}"
        assert _addresses_listened_on(port) == {"0100007F"}
        assert b"MLflow" in _fetch(address)
        search = {
            "experiment_ids": [recorder.experiment_id],
            "filter": "tags.on_front = 'true'",
            "order_by": ["metrics.tokens_per_second DESC"],
        }
        found = json.loads(_fetch(f"{address}/ajax-api/2.0/mlflow/runs/search", search))
        assert [run["info"]["run_name"] for run in found["runs"]] == ["2", "1"]
        front = _fetch(f"{address}/get-artifact?path={names.FRONT_FILE}&run_uuid={recorder.run_id}")
        assert front == b"<p>the front"
        children = _children(server.pid)
        assert children
    finally:
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=60)
    assert (server.returncode, out, err) == (0, "over\n", "")
    assert [pid for pid in children if Path(f"/proc/{pid}").exists()] == []
    assert _addresses_listened_on(port) == set()


def test_taken_port_is_named(settings: TrackingSettings) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            TrackingError, match=rf"^cannot listen on 127.0.0.1:{port} \(Address already in use\); .* Use"
        ):
            serve(settings, port=port)


@pytest.mark.parametrize("port", [0, -1, 70000])
def test_impossible_port_is_named(settings: TrackingSettings, port: int) -> None:
    with pytest.raises(TrackingError, match=rf"^port is {port}; a number from 1 to 65535 is expected"):
        serve(settings, port=port)


def test_address_of_another_machine_is_refused(settings: TrackingSettings) -> None:
    with pytest.raises(TrackingError, match=r"^cannot listen on 192\.0\.2\.1:5000 \(.*\); an address of this machine"):
        serve(settings, host="192.0.2.1")


def test_missing_store_is_named_and_not_created(tmp_path: Path) -> None:
    settings = tracking_settings(output_dir=tmp_path / "runs", experiment="any")
    with pytest.raises(
        TrackingError, match=rf"^there is no tracking store at {tmp_path}/runs/mlflow.db; .* Run a study"
    ):
        serve(settings)
    assert not (tmp_path / "runs").exists()


def test_tracking_server_is_not_served_again() -> None:
    with pytest.raises(TrackingError, match=r"^tracking.uri is http://host:5000, which is a server already; open"):
        serve(TrackingSettings("http://host:5000", "any", None))


def test_server_that_cannot_start_tells_why(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("dear diary " * 1000)
    settings = TrackingSettings(f"sqlite:///{path}", "any", None)
    with (
        pytest.raises(TrackingError, match=r"^MLflow's server on http://127.0.0.1:\d+ did not start: .*database"),
        running_server(settings, port=_free_port()),
    ):
        pass
