"""Trials in PostgreSQL, runs in an MLflow server over it: cut off, started again, shared; secrets stay inside."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from drivers import Driver, Ended

from mlflow_config.server import running_server
from mlflow_config.settings import tracking_settings

if TYPE_CHECKING:
    from postgresql import PostgresqlServer

NewFolder = Callable[..., Path]
EXIT_DONE, EXIT_BAD_INPUT = 0, 2
NUM_POLICIES = 8

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def trials(server: PostgresqlServer, database: str) -> list[tuple[str, int, str]]:
    """Study, number and state of each trial."""
    query = "SELECT study_name, number, state::text FROM trials JOIN studies USING (study_id) ORDER BY 1, 2"
    return [
        (str(study), int(str(number)), str(state)) for study, number, state in server.execute(query, database=database)
    ]


def run_statuses(server: PostgresqlServer, database: str) -> dict[str | None, list[str]]:
    """Statuses of MLflow's runs by the number of their trial; None is the study's own."""
    query = (
        "SELECT value, status FROM runs LEFT JOIN tags ON tags.run_uuid = runs.run_uuid AND tags.key = 'trial_number'"
    )
    found: dict[str | None, list[str]] = {}
    for number, status in server.execute(query, database=database):
        found.setdefault(None if number is None else str(number), []).append(str(status))
    return found


def check_done(ended: Ended) -> None:
    assert "Traceback" not in ended.logged, ended.logged
    assert ended.code == EXIT_DONE, ended


def check_whole(server: PostgresqlServer, database: str, study: str = "simulated") -> None:
    own = [(number, state) for name, number, state in trials(server, database) if name == study]
    assert own == [(number, "COMPLETE") for number in range(NUM_POLICIES)]


def check_recorded(server: PostgresqlServer, database: str) -> None:
    statuses = run_statuses(server, database)
    assert statuses == {None: ["FINISHED"], **{str(number): ["FINISHED"] for number in range(NUM_POLICIES)}}


def test_connections_that_are_cut_cost_no_trial(
    tmp_path: Path, new_folder: NewFolder, postgresql: PostgresqlServer
) -> None:
    address = postgresql.create_database("cut")
    folder = new_folder(tmp_path / "study", storage=address)
    driver = Driver(folder, ("run", "search.yaml"), trial_s=0.4)
    driver.wait_until_logged("trial   1")
    num_cut = 0
    while driver.is_alive():
        num_cut += postgresql.cut_connections()
        time.sleep(0.3)
    check_done(driver.end())
    assert num_cut > 0
    check_whole(postgresql, "cut")


def test_a_server_that_is_started_again_is_waited_for(
    tmp_path: Path, new_folder: NewFolder, postgresql: PostgresqlServer
) -> None:
    from postgresql import stopped

    address = postgresql.create_database("restarted")
    folder = new_folder(tmp_path / "study", storage=address)
    driver = Driver(folder, ("run", "search.yaml"), trial_s=0.4)
    driver.wait_until_logged("trial   1")
    with stopped(postgresql, for_s=8.0):
        driver.wait_until_logged("the search waits for it")
    ended = driver.end()
    check_done(ended)
    assert "storage postgresql://***@127.0.0.1:" in ended.logged
    assert "works again after" in ended.logged
    check_whole(postgresql, "restarted")


def test_of_two_drivers_that_begin_at_once_one_gets_the_study(
    tmp_path: Path, new_folder: NewFolder, postgresql: PostgresqlServer
) -> None:
    address = postgresql.create_database("contended")
    folders = [new_folder(tmp_path / name, storage=address) for name in ("one", "other")]
    drivers = [Driver(folder, ("run", "search.yaml"), trial_s=0.4) for folder in folders]
    ended = [driver.end() for driver in drivers]
    assert sorted(end.code for end in ended) == [EXIT_DONE, EXIT_BAD_INPUT], ended
    refused = next(end for end in ended if end.code == EXIT_BAD_INPUT)
    (line,) = [line for line in refused.logged.splitlines() if line.startswith("study simulated: ")]
    assert "holds trials of a study of this name already; continue it with --resume in its own folder" in line
    check_whole(postgresql, "contended")
    (left,) = [folder for folder, end in zip(folders, ended, strict=True) if end is refused]
    assert not (left / "runs" / "simulated").exists(), "its name is free again"


@contextlib.contextmanager
def mlflow_server(address: str, folder: Path, port: int) -> Iterator[str]:
    settings = tracking_settings(output_dir=folder, experiment="unused", uri=address)
    with running_server(settings, port=port) as server:
        arguments = Path(f"/proc/{server.process.pid}/cmdline").read_text()
        assert "pl4nted" not in arguments
        yield server.address


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_two_studies_share_a_tracking_server_that_goes_down_and_comes_back(
    tmp_path: Path, new_folder: NewFolder, postgresql: PostgresqlServer
) -> None:
    trials_address = postgresql.create_database("served")
    runs_address = postgresql.create_database("served-runs")
    port = free_port()
    changes = {"storage": trials_address, "tracking__uri": f"http://127.0.0.1:{port}"}
    folders = [new_folder(tmp_path / name, study=name, **changes) for name in ("one", "two")]
    with mlflow_server(runs_address, tmp_path / "artifacts", port):
        drivers = [Driver(folder, ("run", "search.yaml"), trial_s=1.0) for folder in folders]
        for driver in drivers:
            driver.wait_until_logged("trial   1")
    # The server is down now, and the searches go on.
    ended = [driver.end() for driver in drivers]
    with mlflow_server(runs_address, tmp_path / "artifacts", port):
        resumed = [Driver(folder, ("run", "search.yaml", "--resume")).end() for folder in folders]
    for end in (*ended, *resumed):
        check_done(end)
    for study in ("one", "two"):
        check_whole(postgresql, "served", study)
    statuses = run_statuses(postgresql, "served-runs")
    assert statuses == {None: ["FINISHED"] * 2, **{str(n): ["FINISHED"] * 2 for n in range(NUM_POLICIES)}}


def test_passwords_are_in_no_file_no_log_and_no_store(
    tmp_path: Path, new_folder: NewFolder, postgresql: PostgresqlServer
) -> None:
    trials_address = postgresql.create_database("secret")
    runs_address = postgresql.create_database("secret-runs")
    folder = new_folder(tmp_path / "study", storage=trials_address, tracking__uri=runs_address)
    ended = Driver(folder, ("run", "search.yaml")).end()
    check_done(ended)
    wrong = trials_address.replace("/secret", "/missing")
    refused = new_folder(tmp_path / "refused", storage=wrong)
    said = Driver(refused, ("run", "search.yaml")).end()
    assert said.code == EXIT_BAD_INPUT, said
    check_recorded(postgresql, "secret-runs")
    (folder / "search.yaml").unlink()  # the user's own
    (refused / "search.yaml").unlink()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if b"pl4nted" in path.read_bytes()] == []
    for database in ("secret", "secret-runs"):
        assert "pl4nted" not in postgresql.dump(database)


def test_a_wrong_password_is_one_line_without_it(
    tmp_path: Path, new_folder: NewFolder, postgresql: PostgresqlServer
) -> None:
    address = postgresql.create_database("guarded").replace("pl4nted", "wr0ng")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(address)
    folder = new_folder(tmp_path / "study", storage=address)
    ended = Driver(folder, ("run", "search.yaml")).end()
    assert ended.code == EXIT_BAD_INPUT, ended
    assert "Traceback" not in ended.logged
    assert "password authentication failed" in ended.logged
    assert "wr0ng" not in ended.logged + ended.said
    assert not (folder / "runs" / "simulated").exists()
