"""What commands that speak to a job server say where it is none, knows no such study, or stops answering."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import Result

from tuner.service import job_client

Tune = Callable[..., Result]
VERSION = {"/api/version": (200, json.dumps({"version": "4", "ray_version": "2.60.0", "ray_commit": "0"}))}
JOB = {
    "type": "SUBMISSION",
    "submission_id": "mine-1",
    "status": "RUNNING",
    "entrypoint": "python -m tuner run study/search.yaml",
    "metadata": {"recompute_tuner_study": "mine"},
}


@contextlib.contextmanager
def answering(pages: Mapping[str, tuple[int, str]]) -> Iterator[str]:
    """The address of a server with these pages, by path; all others are not found."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, text = pages.get(self.path, (404, "not found"))
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def search_file(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text("def build():\n    raise AssertionError('nothing is built here')\n")
    file = tmp_path / "search.yaml"
    file.write_text("study: mine\nmodel: {factory: model.py:build}\nbatch: {global_batch_size: 8}\nmemory_cap: 1GiB\n")
    return file


def line(result: Result, *, code: int) -> str:
    """The one line that was said."""
    assert (result.exit_code, result.stdout) == (code, "")
    (said,) = result.stderr.splitlines()
    return str(said)


@pytest.mark.parametrize(
    "page",
    [
        (200, "<html>a page of something else</html>"),
        (200, "{}"),
        (200, "[]"),
        (200, '{"ray_version": "of my own"}'),
        (404, "not here"),
        (500, "no"),
    ],
    ids=["a page", "no version", "a list", "another version", "404", "500"],
)
def test_a_server_of_another_kind_is_no_job_server(tune: Tune, page: tuple[int, str]) -> None:
    with answering({"/api/version": page}) as address:
        said = line(tune("list", "--address", address), code=2)
    assert said.startswith(f"--address is {address}, but no job server answers there (")
    assert said.endswith("and name the dashboard's address")


@pytest.mark.parametrize("address", ["http://", "http://:8265", "http://host:port", "http://[::1", "ray://h:1", ""])
def test_an_address_that_names_no_server_is_refused_unasked(tune: Tune, address: str) -> None:
    said = line(tune("list", "--address", address), code=2)
    assert said.startswith(f"--address is '{address}'; allowed is the address of the cluster's job server")
    assert said.endswith("; write that")


def test_a_password_in_the_address_is_not_repeated(tune: Tune) -> None:
    said = line(tune("list", "--address", "http://me:secret@127.0.0.1:9"), code=2)
    assert said.startswith("--address is http://***@127.0.0.1:9, but no job server answers there")
    assert "secret" not in said


@pytest.mark.parametrize("command", ["status", "logs", "stop"])
def test_a_study_that_no_job_drives_is_answered_with_those_that_are(tune: Tune, command: str) -> None:
    with answering({**VERSION, "/api/jobs/": (200, json.dumps([JOB]))}) as address:
        said = line(tune(command, "mien", "--address", address), code=2)
    assert said == f"STUDY is 'mien', which no job on {address} drives (studies there: mine); name one"


def test_a_study_that_is_driven_already_is_not_submitted_again(tune: Tune, search_file: Path) -> None:
    with answering({**VERSION, "/api/jobs/": (200, json.dumps([JOB]))}) as address:
        said = line(tune("submit", str(search_file), "--address", address), code=2)
    assert said.startswith("study mine is driven by job mine-1 already; wait for it or stop it with tune stop mine")


@pytest.mark.parametrize("command", ["list", "status mine", "logs mine", "logs mine -f", "stop mine", "submit FILE"])
@pytest.mark.parametrize("page", [(500, "the head is gone"), (200, "half a pa")], ids=["500", "half a page"])
def test_a_server_that_stops_working_fails_the_command(
    tune: Tune, search_file: Path, command: str, page: tuple[int, str]
) -> None:
    with answering({**VERSION, "/api/jobs/": page}) as address:
        said = line(tune(*command.replace("FILE", str(search_file)).split(), "--address", address), code=1)
    assert said.startswith(f"the job server at {address} does not do it (")
    assert said.endswith("; look at the cluster with `ray status` and try again")


@pytest.mark.parametrize("command", ["list", "status mine", "logs mine", "logs mine -f", "stop mine", "submit FILE"])
@pytest.mark.parametrize(("path", "code"), [("/api/version", 401), ("/api/version", 403), ("/api/jobs/", 403)], ids=str)
def test_a_missing_or_wrong_token_is_said_to_be_one(
    tune: Tune, search_file: Path, command: str, path: str, code: int
) -> None:
    with answering({**VERSION, path: (code, "Unauthorized")}) as address:
        said = line(tune(*command.replace("FILE", str(search_file)).split(), "--address", address), code=2)
    assert said.startswith(f"--address is {address}, and the cluster there asks for a token; set RAY_AUTH_MODE=token")


def test_a_server_that_never_answers_is_not_waited_for(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_client, "_ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        said = line(tune("list", "--address", address), code=2)
    assert said.startswith(f"--address is {address}, but no job server answers there (no answer within 0.2 s)")


def test_what_a_driver_prints_is_followed_to_its_end_and_moves_no_cursor(tune: Tune) -> None:
    ended = {**JOB, "status": "SUCCEEDED"}
    pages = {
        **VERSION,
        "/api/jobs/": (200, json.dumps([ended])),
        "/api/jobs/mine-1": (200, json.dumps(ended)),
        "/api/jobs/mine-1/logs": (200, json.dumps({"logs": "one\ntwo \x1b[2J\n"})),
    }
    with answering(pages) as address:
        result = tune("logs", "mine", "-f", "--address", address)
    assert (result.exit_code, result.stdout) == (0, "one\ntwo \\u001b[2J\n")
