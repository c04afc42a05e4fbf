"""What a container runtime, a kubelet's or a scheduler answers about one of its own.

Only an answer counts: that a runtime does not know a container says nothing of it, since
a host may have several. Whoever is asked has little time.
"""

from __future__ import annotations

import os
import pwd
from time import monotonic

from fleetmem.agent import wire
from fleetmem.agent.kernel import sysroot
from fleetmem.agent.services.program import Program, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional, Sequence

DOCKER_SOCKETS = ("/run/docker.sock", "/var/run/docker.sock")
ANSWER_BYTES = 4 << 20
SECONDS = 2.0
LIVE = frozenset(("running", "paused", "restarting", "stopping", "container_running", "ready"))
ENDED = frozenset(("exited", "dead", "stopped", "container_exited", "notready"))
JOB_LIVE = frozenset(
    (
        *("RUNNING", "PENDING", "SUSPENDED", "COMPLETING", "CONFIGURING", "RESIZING"),
        *("REQUEUED", "STOPPED", "SIGNALING", "STAGE_OUT", "REQUEUE_HOLD", "SPECIAL_EXIT"),
    )
)
JOB_ENDED = frozenset(
    (
        *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"),
        *("OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "REVOKED"),
    )
)


class Answer:
    """What a manager said: ``state`` is live, ended or ``None``, ``detail`` its own words."""

    __slots__ = ("detail", "main_pid", "manager", "name", "restart", "state")

    def __init__(self, manager: str, state: Optional[str], detail: str) -> None:
        self.manager = manager
        self.state = state
        self.detail = detail
        self.name: Optional[str] = None
        self.main_pid: Optional[int] = None
        self.restart: Optional[str] = None


def container(
    ident: str, runtime: Optional[str], uid: Optional[int], sockets: Sequence[str], deadline: float
) -> Optional[Answer]:
    """The answer of the runtime that has this container; *uid*: it is that user's own."""
    if runtime == "docker":
        for socket in dict.fromkeys((*sockets, *DOCKER_SOCKETS)):
            found = _docker(socket, ident, deadline)
            if found is not None:
                return found
        return None
    if runtime == "podman":
        return _inspected("podman", ["podman", "container", "inspect", ident], uid, deadline)
    if runtime == "nerdctl":
        return _inspected("nerdctl", ["nerdctl", "container", "inspect", ident], uid, deadline)
    if runtime in ("containerd", "cri-o"):
        return _cri(ident, deadline)
    return None


def pod(uid: str, deadline: float) -> Optional[Answer]:
    """What the container runtime says of a pod's sandbox."""
    said = _client(["crictl", "pods", "-o", "json"], None, deadline)
    for item in _list(said, "items"):
        meta = _dict(item, "metadata")
        if meta.get("uid") == uid:
            state = str(item.get("state", "")).lower().replace("sandbox_", "")
            answer = Answer("cri", _state(state), state)
            answer.name = "%s/%s" % (meta.get("namespace"), meta.get("name"))
            return answer
    return None


def job(number: str, deadline: float) -> Optional[Answer]:
    """What Slurm's controller says of a job."""
    text = said(["scontrol", "--oneliner", "show", "job", number], None, deadline)
    for word in (text or "").split():
        name, _, value = word.partition("=")
        if name == "JobState":
            state = "live" if value in JOB_LIVE else "ended" if value in JOB_ENDED else None
            return Answer("slurm", state, value)
    return None


def _state(word: str) -> Optional[str]:
    return "live" if word in LIVE else "ended" if word in ENDED else None


def _dict(data: Any, name: str) -> Any:
    inner = data.get(name) if isinstance(data, dict) else None
    return inner if isinstance(inner, dict) else {}


def _list(data: Any, name: str) -> List[Any]:
    inner = data.get(name) if isinstance(data, dict) else None
    return [row for row in inner if isinstance(row, dict)] if isinstance(inner, list) else []


def _inspection(manager: str, data: Any) -> Optional[Answer]:
    """The form that docker, podman and nerdctl share."""
    state = _dict(data, "State")
    word = str(state.get("Status", "")).lower()
    if not word:
        return None
    answer = Answer(manager, _state(word), word)
    if answer.state == "ended" and isinstance(state.get("ExitCode"), int):
        answer.detail = "%s %d" % (word, state["ExitCode"])
    main = state.get("Pid")
    answer.main_pid = main if isinstance(main, int) and main > 0 else None
    answer.name = str(data.get("Name") or "").lstrip("/") or None
    policy = _dict(_dict(data, "HostConfig"), "RestartPolicy").get("Name")
    answer.restart = str(policy) if policy else None
    return answer


# --- asking --------------------------------------------------------------------------------


def _docker(socket: str, ident: str, deadline: float) -> Optional[Answer]:
    """GET /containers/ID/json of the daemon that listens at *socket*."""
    if not sysroot.exists(socket):
        return None
    data = _get(sysroot.path(socket), "/containers/%s/json" % ident, deadline)
    if not isinstance(data, dict) or str(data.get("Id", "")) != ident:
        return None
    return _inspection("docker", data)


def _get(path: str, what: str, deadline: float) -> Any:
    import _socket

    channel = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    data = b""
    until = min(deadline, monotonic() + SECONDS)
    try:
        channel.settimeout(max(0.01, until - monotonic()))
        channel.connect(path)
        channel.send(("GET %s HTTP/1.0\r\nHost: docker\r\n\r\n" % what).encode())
        while len(data) < ANSWER_BYTES and monotonic() < until:
            more = channel.recv(1 << 16)
            if not more:
                break
            data += more
    except OSError:
        return None
    finally:
        channel.close()
    head, _, body = data.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0] + b" ":
        return None
    try:
        return wire.loads(body.decode("utf-8", "replace").strip())
    except ValueError:
        return None


def _inspected(
    manager: str, words: List[str], uid: Optional[int], deadline: float
) -> Optional[Answer]:
    said = _client(words, uid, deadline)
    rows = said if isinstance(said, list) else [said]
    for row in rows:
        if isinstance(row, dict) and str(row.get("Id", "")) == words[-1]:
            return _inspection(manager, row)
    return None


def _cri(ident: str, deadline: float) -> Optional[Answer]:
    said = _client(["crictl", "inspect", "-o", "json", ident], None, deadline)
    status = _dict(said, "status")
    if str(status.get("id", "")) != ident:
        return None
    word = str(status.get("state", "")).lower()
    answer = Answer("cri", _state(word), word.replace("container_", ""))
    main = _dict(said, "info").get("pid")
    answer.main_pid = main if isinstance(main, int) and main > 0 else None
    answer.name = str(_dict(status, "metadata").get("name") or "") or None
    return answer


def _client(words: List[str], uid: Optional[int], deadline: float) -> Any:
    text = said(words, uid, deadline)
    try:
        return None if text is None else wire.loads(text.strip())
    except ValueError:
        return None


def said(words: List[str], uid: Optional[int], deadline: float) -> Optional[str]:
    """What a client prints, ``None`` where it is not here, fails or takes too long.

    A user's own runtime is asked as that user: what is found in their home is theirs.
    """
    path = place(words[0])
    if path is None:
        return None
    if uid:
        words = ["env", "XDG_RUNTIME_DIR=/run/user/%d" % uid, *words]
        if uid != os.geteuid():
            try:
                group = pwd.getpwuid(uid).pw_gid
            except KeyError:
                return None
            as_user = ["setpriv", "--reuid=%d" % uid, "--regid=%d" % group, "--clear-groups"]
            words = [*as_user, *words]
        path = place(words[0])
        if path is None:
            return None
    try:
        program = Program(path, words, min(deadline, monotonic() + SECONDS))
    except OSError:
        return None
    try:
        data = b""
        for portion in program.portions():
            data += portion
            if len(data) > ANSWER_BYTES:
                return None
    finally:
        program.end()
    return None if program.problem() else data.decode("utf-8", "replace")
