"""The database of the history: one file of the user's own, shared by several processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fleetmem.controller.errors import HistoryUnavailable
from fleetmem.controller.record.history_schema import MIGRATIONS
from fleetmem.controller.record.state_directory import on_network, own_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3

BUSY_SECONDS = 20.0
"""How long one process waits for another one's transaction."""


def open_database(warn: Callable[[str], None], directory: Path) -> Database:
    """Open (and create or migrate) it; HistoryUnavailable where that cannot be."""
    import sqlite3

    path = directory / "history.sqlite"
    try:
        own_directory(directory)
        _create(path)
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
    except (OSError, sqlite3.Error) as error:
        raise HistoryUnavailable(f"{path}: {_reason(error)}") from None
    database = Database(connection, path, warn)
    try:
        database.prepare(shared=on_network(directory))
    except BaseException:
        connection.close()
        raise
    return database


def _create(path: Path) -> None:
    """Make an empty file of the owner's. One that is there is not opened: closing it would
    drop every lock of this process on it, also those of a history that is open (POSIX)."""
    import stat

    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise OSError("not a regular file") from None


class Database:
    """One open database. Threads may share it: each use is exclusive."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, warn: Callable[[str], None]
    ) -> None:
        self.path = path
        self.connection = connection
        self._warn = warn
        self._lock = threading.Lock()
        self._given_up = False

    def close(self) -> None:
        """Close it; a second call does nothing."""
        self.connection.close()

    def prepare(self, shared: bool) -> None:
        """Set the journal mode and bring the tables to the newest version."""
        with self._exclusive():
            self.connection.execute("PRAGMA synchronous=NORMAL")
            mode = self._journal_mode("DELETE" if shared else "WAL")
            if shared:
                self._warn(
                    f"{self.path.parent} lies on a network file system: history uses the "
                    f"{mode.upper()} journal, keep it to one machine at a time"
                )
        with self.must():
            self._migrate()

    def rows(self, query: str, values: tuple[Any, ...]) -> list[Any]:
        """The rows of one query; HistoryUnavailable with its reason."""
        with self._exclusive():
            return self.connection.execute(query, values).fetchall()

    @contextmanager
    def must(self, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """One transaction, on the disk at its end where it is *durable*; every failure is
        HistoryUnavailable with its reason."""
        with self._exclusive():
            if durable:
                self.connection.execute("PRAGMA synchronous=FULL")
            try:
                with self._transaction():
                    yield self.connection
            finally:
                if durable:
                    self.connection.execute("PRAGMA synchronous=NORMAL")

    @contextmanager
    def may(self) -> Iterator[sqlite3.Connection]:
        """One transaction; a failure warns, once, and what was to be written is not."""
        try:
            with self.must():
                yield self.connection
        except HistoryUnavailable as error:
            if not self._given_up:
                self._warn(f"this run is not recorded: {error.message}")
            self._given_up = True

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        import sqlite3

        with self._lock:
            try:
                yield
            except (sqlite3.Error, OSError) as error:
                raise HistoryUnavailable(f"{self.path}: {_reason(error)}") from None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    def _journal_mode(self, wanted: str) -> str:
        """Switch; two processes that do so at once make SQLite busy without waiting."""
        import sqlite3

        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                row = self.connection.execute(f"PRAGMA journal_mode={wanted}").fetchone()
                return str(row[0])
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def _migrate(self) -> None:
        have = int(self.connection.execute("PRAGMA user_version").fetchone()[0])
        if have > len(MIGRATIONS):
            raise HistoryUnavailable(
                f"{self.path} was written by a newer fleetmem (version {have} of its tables)",
                "use that version, or another XDG_STATE_HOME",
            )
        for step in MIGRATIONS[have:]:
            for statement in step:
                self.connection.execute(statement)
        self.connection.execute(f"PRAGMA user_version={len(MIGRATIONS)}")


def _reason(error: BaseException) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
