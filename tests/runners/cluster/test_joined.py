"""Addresses at which there is no Ray cluster are refused in seconds, whatever answers there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from runners.base import RunnerError
from runners.cluster import joined
from runners.cluster.joined import join_cluster


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that treats its one connection so, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def answer_as_http_1(connection: socket.socket) -> None:
    connection.recv(100)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize("scheme", ["", "ray://"])
@pytest.mark.parametrize("answer", [answer_as_http_1, lambda connection: None], ids=["HTTP/1", "nothing"])
def test_a_server_of_another_kind_is_no_cluster(scheme: str, answer: Callable[[socket.socket], None]) -> None:
    with (
        answering(answer) as address,
        pytest.raises(RunnerError, match=r"^runner\.ray_address is .*, but .*; .*(6379|private local one)") as caught,
    ):
        join_cluster(scheme + address)
    assert f"is {scheme}{address}, but" in str(caught.value)


def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "_CONNECT_TIMEOUT_S", 0.2)
    silent = threading.Event()
    with answering(lambda connection: silent.wait(60) and None) as address:
        with pytest.raises(RunnerError, match=r"but nobody answers there \(timed out\); start the cluster"):
            join_cluster(address)
        silent.set()


def test_credentials_in_an_address_are_not_repeated() -> None:
    with pytest.raises(RunnerError, match=r"runner\.ray_address is \*\*\*@127\.0\.0\.1:9, but nobody answers there"):
        join_cluster("ray://me:secret@127.0.0.1:9")
