"""Shapes of ``engine.find``, ``engine.request``."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class LogSource(TypedDict):
    """Where the log of processes that hold a GPU goes: what ``journal.read`` may be given."""

    kind: Literal["unit", "user_unit", "container", "file"]
    name: str
    user: str | None
    runtime: str | None
    pids: list[int]


class Unplaced(TypedDict):
    """A process that holds a GPU and whose log was not found."""

    pid: int
    comm: str
    title: str
    why: str


class EngineLogs(TypedDict):
    """Reading of ``engine.find``."""

    sources: list[LogSource]
    unplaced: list[Unplaced]
    denied: int


class RequestProcess(TypedDict):
    """One process of an engine; ``read_bytes`` came from storage for it during the request."""

    pid: int
    comm: str
    listens: bool
    read_bytes: int | None


class RequestDisk(TypedDict):
    """One disk that was read from. ``stacked`` ones lie on others, which count the same bytes."""

    name: str
    read_bytes: int
    stacked: bool


class EngineRequest(TypedDict):
    """Reading of ``engine.request``. ``status`` is ``None`` where no answer came: ``problem``.

    ``seconds`` from the connection to the end of the answer (or of the wait). ``read_bytes`` is
    what all ``processes`` read together, ``disks_read_bytes`` what anybody read from disks that
    are not stacked.
    """

    url: str
    method: Literal["GET", "POST"]
    model: str | None
    status: int | None
    problem: str | None
    seconds: float
    body_bytes: int
    listening: list[int]
    read_bytes: int | None
    processes: list[RequestProcess]
    disks_read_bytes: int | None
    disks: list[RequestDisk] | None
    denied: int
