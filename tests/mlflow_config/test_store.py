from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from mlflow_config.errors import TrackingError
from mlflow_config.settings import TrackingSettings
from mlflow_config.store import TrackingStore


class _Server(HTTPServer):
    """Answers one question of MLflow's protocol, after refusing it a number of times."""

    refusals = 0
    code = "TEMPORARILY_UNAVAILABLE"
    asked = 0


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.asked += 1
        refused = self.server.asked <= self.server.refusals
        answer = (
            {"error_code": self.server.code, "message": "not now"}
            if refused
            else {"experiment": {"experiment_id": "7", "name": "e", "lifecycle_stage": "active"}}
        )
        body = json.dumps(answer).encode()
        self.send_response(400 if refused else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def _open(server: _Server, *, patience_s: float) -> TrackingStore:
    store = TrackingStore(TrackingSettings(f"http://127.0.0.1:{server.server_port}", "e", None), patience_s=patience_s)
    store.open()
    return store


def test_busy_store_is_asked_again(server: _Server) -> None:
    server.refusals = 2
    assert _open(server, patience_s=30.0).find_or_create_experiment("e", tags={}) == "7"
    assert server.asked == 3


def test_store_that_refuses_for_good_is_asked_once(server: _Server) -> None:
    server.refusals, server.code = 99, "PERMISSION_DENIED"
    with pytest.raises(TrackingError, match=r"^cannot find experiment 'e' in http://127.0.0.1:\d+: .*not now"):
        _open(server, patience_s=30.0).find_or_create_experiment("e", tags={})
    assert server.asked == 1


def test_store_that_stayed_busy_is_not_waited_for_again(server: _Server) -> None:
    server.refusals = 10**6
    store = _open(server, patience_s=0.5)
    with pytest.raises(TrackingError, match="cannot find experiment"):
        store.find_or_create_experiment("e", tags={})
    asked_before = server.asked
    assert asked_before > 1
    with pytest.raises(TrackingError, match="cannot find experiment"):
        store.find_or_create_experiment("e", tags={})
    assert server.asked == asked_before + 1
    server.refusals = 0
    assert store.find_or_create_experiment("e", tags={}) == "7"
    server.asked, server.refusals = 0, 1
    assert store.find_or_create_experiment("e", tags={}) == "7"


def test_dead_database_server_is_named_within_seconds() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        started = time.monotonic()
        store = TrackingStore(TrackingSettings(f"postgresql://me:secret@127.0.0.1:{port}/mlflow", "e", None))
        expected = rf"^tracking.uri is postgresql://me:\*\*\*@127.0.0.1:{port}/mlflow, but 127.0.0.1:{port} does not"
        with pytest.raises(TrackingError, match=expected):
            store.open()
    assert time.monotonic() - started < 10


def test_file_that_is_no_database_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    path.write_text("dear diary " * 1000)
    store = TrackingStore(TrackingSettings(f"sqlite:///{path}", "e", None), patience_s=0.0)
    with pytest.raises(TrackingError, match=r"cannot open the store in sqlite:.*file is not a database") as caught:
        store.open()
    assert "\n" not in str(caught.value)
    assert path.read_text().startswith("dear diary")


def test_store_must_be_open(settings: TrackingSettings) -> None:
    with pytest.raises(TrackingError, match=rf"^the store {re.escape(settings.shown_uri)} is not open; open it first$"):
        TrackingStore(settings).find_or_create_experiment("e", tags={})


def test_new_file_lets_readers_and_the_writer_work_together(empty_tracking_database: Path) -> None:
    connection = sqlite3.connect(empty_tracking_database)
    mode = connection.execute("PRAGMA journal_mode").fetchone()
    connection.close()
    assert mode == (("wal",) if os.path.exists("/proc/self/mounts") else ("delete",))


def test_value_with_both_kinds_of_quotes_cannot_be_searched(settings: TrackingSettings) -> None:
    store = TrackingStore(settings)
    store.open()
    with pytest.raises(ValueError, match="holds both kinds of quotes"):
        store.find_runs("1", "study_id", 'it\'s "it"')
    store.close()
