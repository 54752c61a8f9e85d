"""A PostgreSQL server of the tests' own, on this machine only, that can be cut off and started again."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

#: Planted in each address, to be looked for wherever it should not be.
PASSWORD = "pl4nted-s3cret"
USER = "tuner"
_ADMINISTRATOR = "postgres"
_ACCESS = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
_OPTIONS = ("fsync=off", "shared_buffers=16MB", "max_connections=60", "listen_addresses=127.0.0.1")


def find_programs() -> Path | None:
    """The folder of the newest server that is installed; None where none is."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    return installed[-1].parent if installed else Path(on_path).parent if on_path else None


class PostgresqlServer:
    """Runs as another user where these tests are the system's administrator, whom the server refuses."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
        if os.getuid() == 0:
            account = pwd.getpwnam("postgres")
            os.chown(self._folder, account.pw_uid, account.pw_gid)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._data = self._folder / "data"
        self._run("initdb", "-D", str(self._data), "-U", _ADMINISTRATOR, "--no-sync", "-E", "UTF8", "--locale=C")
        (self._data / "pg_hba.conf").write_text(_ACCESS)
        self.start()
        self.execute(f"CREATE ROLE {USER} LOGIN CREATEDB PASSWORD '{PASSWORD}'")

    def address(self, database: str) -> str:
        """For SQLAlchemy, with the password."""
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self._port}/{database}"

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """A new database with what the template holds; its address."""
        self.execute(f'CREATE DATABASE "{name}" OWNER {USER} TEMPLATE "{template}" STRATEGY file_copy')
        return self.address(name)

    def execute(self, statement: str, *, database: str = "postgres") -> list[tuple[object, ...]]:
        """Rows of a statement, as the administrator."""
        import psycopg

        where = {"host": str(self._folder), "port": self._port, "dbname": database, "user": _ADMINISTRATOR}
        with psycopg.connect(**where, autocommit=True) as connection:  # type: ignore[arg-type]  # texts and a number
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def dump(self, database: str) -> str:
        """Everything that a database holds."""
        return self._run("pg_dump", "-h", str(self._folder), "-p", str(self._port), "-U", _ADMINISTRATOR, database)

    def cut_connections(self) -> int:
        """Ends every connection of the drivers; how many there were."""
        return len(self.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{USER}'"))

    def start(self) -> None:
        options = " ".join(f"-c {option}" for option in (*_OPTIONS, f"port={self._port}"))
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", str(self._data), "-l", log, "-w", "-o", f"{options} -k {self._folder}", "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-D", str(self._data), "-w", "-m", mode, "stop")

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):  # it is stopped already
            self.stop("immediate")
        shutil.rmtree(self._folder)

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(self._programs / program), *arguments]
        if os.getuid() == 0:
            command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]
        # The server must not hold the pipes of the tests open.
        with tempfile.TemporaryFile() as output:
            ended = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, cwd="/", timeout=300
            )
            output.seek(0)
            text = output.read().decode(errors="replace")
        if ended.returncode != 0:
            raise subprocess.CalledProcessError(ended.returncode, command, text)
        return text


@contextlib.contextmanager
def stopped(server: PostgresqlServer, *, for_s: float) -> Iterator[None]:
    """The server is down for so long, whatever happens within."""
    server.stop("immediate")
    began = time.monotonic()
    try:
        yield
    finally:
        time.sleep(max(0.0, for_s - (time.monotonic() - began)))
        server.start()
