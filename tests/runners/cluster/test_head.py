from __future__ import annotations

import socket
import threading

import pytest

from runners.base import RunnerError
from runners.cluster import head as ray_head
from runners.cluster.head import RayHead


def listening(port: int = 0) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def test_a_head_that_answers_is_there() -> None:
    with listening() as server:
        head = RayHead(f"127.0.0.1:{server.getsockname()[1]}", "head.example:6379")
        head.raise_if_gone()
        assert not head.is_gone


def test_a_head_that_is_silent_too_long_is_gone_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_head, "_PATIENCE_S", 0.0)
    with listening() as server:
        port = server.getsockname()[1]
        head = RayHead(f"127.0.0.1:{port}", "head.example:6379")
    with pytest.raises(
        RunnerError, match=r"^the head of the Ray cluster \(head\.example:6379\) does not answer any more"
    ):
        head.raise_if_gone()
    assert head.is_gone
    with listening(port), pytest.raises(RunnerError, match="go on with --resume"):
        head.raise_if_gone()


def test_a_head_that_is_back_in_time_was_only_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as server:
        port = server.getsockname()[1]
    again: list[socket.socket] = []
    timer = threading.Timer(0.2, lambda: again.append(listening(port)))
    timer.start()
    head = RayHead(f"127.0.0.1:{port}", "head.example:6379")
    head.raise_if_gone()
    assert not head.is_gone
    timer.join()
    again[0].close()
