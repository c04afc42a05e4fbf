"""``engine.request``: one HTTP request from the host to itself, and what it read from disk.

Whether an engine that serves still has its files in memory shows when it is asked something.
"""

from __future__ import annotations

import time

from fleetmem.agent import wire
from fleetmem.agent.declare import probe
from fleetmem.agent.kernel import storage_reads
from fleetmem.agent.model import PARTIAL, Trouble
from fleetmem.agent.services import loopback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict

    from fleetmem.agent.shapes import EngineRequest

MOST_PROCESSES = 500
COMPLETIONS = ("/v1/completions", "/v1/chat/completions")


@probe("engine.request")
def engine_request(*, url: str = "", seconds: float = 60.0) -> EngineRequest:
    """One request to a loopback *url*: status, time, and the storage reads meanwhile.

    Completions are asked for one token with the first model of /v1/models; anything else is
    a plain GET. Reads are those of the processes that listen there, their process groups and
    descendants (/proc/PID/io), and of all disks (/proc/diskstats). At most *seconds*.
    """
    deadline = time.monotonic() + seconds
    place = loopback.parse(url)
    processes = storage_reads.Processes(place.port)
    disks = storage_reads.disks()
    completes = place.path.endswith(COMPLETIONS)
    model, body, status, problem = None, None, None, None
    size = 0
    begin = time.monotonic()
    try:
        if completes:
            model = _model(place, deadline)
            body = _question(place.path, model)
            begin = time.monotonic()
        status, size, _ = loopback.ask(place, body, deadline)
    except loopback.Problem as trouble:
        problem = str(trouble)
    taken = time.monotonic() - begin
    rows = processes.rows()
    known = [row["read_bytes"] for row in rows if row["read_bytes"] is not None]
    reads = storage_reads.since(disks, storage_reads.disks())
    reading: EngineRequest = {
        "url": url,
        "method": "POST" if completes else "GET",
        "model": model,
        "status": status,
        "problem": problem,
        "seconds": round(taken, 6),
        "body_bytes": size,
        "listening": processes.listening,
        "read_bytes": processes.total() if known else None,
        "processes": rows[:MOST_PROCESSES],
        "disks_read_bytes": None
        if reads is None
        else sum(row["read_bytes"] for row in reads if not row["stacked"]),
        "disks": reads,
        "denied": processes.denied,
    }
    if processes.denied:
        from fleetmem.agent.words import count, reader

        who = count(processes.denied, "process")
        raise Trouble(PARTIAL, "%s could not be inspected %s" % (who, reader()), reading)
    return reading


def _model(place: loopback.LoopbackPlace, deadline: float) -> str:
    """The first model that the server names."""
    path = place.path[: place.path.rindex("/v1/")] + "/v1/models"
    models = loopback.LoopbackPlace(place.host, place.port, path, place.addresses)
    try:
        status, _, body = loopback.ask(models, None, deadline)
    except loopback.Problem as trouble:
        raise loopback.Problem("GET %s: %s" % (path, trouble)) from None
    if status != 200:
        raise loopback.Problem("GET %s: status %d, so no model is known" % (path, status))
    try:
        name = wire.loads(body.decode("utf-8").strip())["data"][0]["id"]
    except (ValueError, LookupError, TypeError, RecursionError):
        name = None
    if not isinstance(name, str):
        raise loopback.Problem("GET %s: it names no model" % path)
    return name[:1000]


def _question(path: str, model: str) -> bytes:
    """A request for one token."""
    asked: Dict[str, Any] = {"model": model, "max_tokens": 1}
    if path.endswith(COMPLETIONS[1]):
        asked["messages"] = [{"role": "user", "content": "a"}]
    else:
        asked["prompt"] = "a"
    return wire.dumps(asked).encode("ascii")
