"""What systemd, container runtimes and schedulers answer; and that silence is not an answer."""

from __future__ import annotations

import json
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleetmem.agent.kernel import sysroot
from fleetmem.agent.services import runtimes, units

IDENT = "0123456789ab" * 5 + "0123"

SHOWN = """\
Id=vllm.service
LoadState=loaded
ActiveState=activating
SubState=auto-restart
Result=exit-code
InvocationID=00112233445566778899aabbccddeeff
KillMode=control-group
SendSIGKILL=yes
MainPID=0
Restart=on-failure
RestartUSec=1min 30s
InactiveExitTimestampMonotonic=2500000
ControlGroup=/system.slice/vllm.service

Id=gone.service
LoadState=not-found
ActiveState=inactive
SubState=dead
Result=success
InvocationID=
KillMode=control-group
SendSIGKILL=yes
MainPID=0
Restart=no
RestartUSec=100ms
InactiveExitTimestampMonotonic=0
ControlGroup=

Id=left.service
LoadState=loaded
ActiveState=failed
SubState=failed
Result=exit-code
InvocationID=ffeeddccbbaa99887766554433221100
KillMode=process
SendSIGKILL=no
MainPID=0
Restart=no
RestartUSec=infinity
InactiveExitTimestampMonotonic=10
ControlGroup=
"""


def test_what_systemctl_shows() -> None:
    names = ["vllm.service", "gone.service", "left.service"]
    found = units.parse(names, SHOWN)
    live, gone, left = (found[name] for name in names)
    assert (live.state, live.restart, live.restart_seconds) == ("live", "on-failure", 90.0)
    assert live.detail == "activating/auto-restart/exit-code"
    assert (live.started_us, live.main_pid) == (2500000, None)
    assert (left.state, left.kill_mode, left.send_sigkill) == ("ended", "process", False)
    assert left.restart_seconds is None
    # systemd shows defaults for what it has not loaded: none of that is the unit's.
    assert (gone.kill_mode, gone.send_sigkill, gone.restart) == (None,) * 3
    assert (gone.state, gone.detail) == ("ended", "inactive, not-found")


def test_an_answer_about_other_units_is_not_an_answer() -> None:
    assert units.parse(["a.service"], SHOWN) == {}


@pytest.mark.parametrize(
    ("text", "number"),
    [("100ms", 0.1), ("1min 30s", 90.0), ("1h", 3600.0), ("infinity", None), ("", None)],
)
def test_durations(text: str, number: float | None) -> None:
    assert units.seconds(text) == number


# --- docker -----------------------------------------------------------------------------------


@contextmanager
def daemon(path: Path, answer: bytes | None) -> Iterator[list[bytes]]:
    """Somebody who listens at a runtime's socket; ``None`` answers nothing at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            with server.accept()[0] as client:
                asked.append(client.recv(4096))
                if answer is None:
                    client.recv(4096)
                else:
                    client.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield asked
        thread.join(10)


def inspected(status: str, **more: object) -> bytes:
    document = {
        "Id": IDENT,
        "Name": "/engine",
        "State": {"Status": status, "Pid": 4711, "ExitCode": 137, **more},
        "HostConfig": {"RestartPolicy": {"Name": "always"}},
    }
    return b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(document).encode()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sysroot, "ROOT", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("status", "state", "detail"),
    [
        ("running", "live", "running"),
        ("paused", "live", "paused"),
        ("restarting", "live", "restarting"),
        ("exited", "ended", "exited 137"),
        ("dead", "ended", "dead 137"),
        ("removing", None, "removing"),
    ],
)
def test_docker_says_what_a_container_does(
    root: Path, status: str, state: str | None, detail: str
) -> None:
    with daemon(root / "run/docker.sock", inspected(status)) as asked:
        answer = runtimes.container(IDENT, "docker", None, [], time.monotonic() + 5)
    assert answer is not None
    assert (answer.state, answer.detail, answer.name) == (state, detail, "engine")
    assert (answer.restart, answer.main_pid) == ("always", 4711)
    assert asked[0].startswith(f"GET /containers/{IDENT}/json HTTP/1.0".encode())


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.0 404 Not Found\r\n\r\n{"message": "No such container"}',
        b"HTTP/1.0 200 OK\r\n\r\nnot json",
        b'HTTP/1.0 200 OK\r\n\r\n{"Id": "another", "State": {"Status": "exited"}}',
        b"",
    ],
)
def test_a_daemon_that_does_not_have_it_proves_nothing(root: Path, answer: bytes) -> None:
    with daemon(root / "run/docker.sock", answer):
        assert runtimes.container(IDENT, "docker", None, [], time.monotonic() + 5) is None


def test_another_daemon_with_a_socket_of_its_own_is_asked_too(root: Path) -> None:
    other = "/srv/own/docker.sock"
    missing = b'HTTP/1.0 404 Not Found\r\n\r\n{"message": "No such container"}'
    with (
        daemon(root / "run/docker.sock", missing),
        daemon(root / other[1:], inspected("running")),
    ):
        found = runtimes.container(
            IDENT, "docker", None, ["/run/docker.sock", other], time.monotonic() + 5
        )
    assert found is not None
    assert found.state == "live"


def test_a_daemon_that_says_nothing_is_left_after_its_time(root: Path) -> None:
    with daemon(root / "run/docker.sock", None):
        begun = time.monotonic()
        assert runtimes.container(IDENT, "docker", None, [], begun + 0.3) is None
        assert time.monotonic() - begun < 2


# --- clients ----------------------------------------------------------------------------------


def client(root: Path, name: str, body: str) -> None:
    path = root / "usr/bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_podman_inspects(root: Path) -> None:
    row = {"Id": IDENT, "Name": "box", "State": {"Status": "exited", "ExitCode": 0}}
    client(root, "podman", f"[ $3 = {IDENT} ] && echo '{json.dumps([row])}'\n")
    answer = runtimes.container(IDENT, "podman", None, [], time.monotonic() + 5)
    assert answer is not None
    assert (answer.manager, answer.state, answer.detail) == ("podman", "ended", "exited 0")


@pytest.mark.parametrize("body", ["exit 125\n", "echo nonsense\n", "echo '[]'\n", "sleep 60\n"])
def test_a_client_that_fails_proves_nothing(root: Path, body: str) -> None:
    client(root, "podman", body)
    assert runtimes.container(IDENT, "podman", None, [], time.monotonic() + 0.5) is None


def test_the_runtime_interface_of_kubernetes(root: Path) -> None:
    row = {
        "status": {"id": IDENT, "state": "CONTAINER_EXITED", "metadata": {"name": "engine"}},
        "info": {"pid": 0},
    }
    client(root, "crictl", f"echo '{json.dumps(row)}'\n")
    answer = runtimes.container(IDENT, "containerd", None, [], time.monotonic() + 5)
    assert answer is not None
    assert (answer.state, answer.detail, answer.name) == ("ended", "exited", "engine")


@pytest.mark.parametrize(
    ("state", "word"), [("SANDBOX_READY", "live"), ("SANDBOX_NOTREADY", "ended")]
)
def test_a_pod_by_its_sandbox(root: Path, state: str, word: str) -> None:
    meta = {"uid": "u-1", "name": "llm-0", "namespace": "prod"}
    client(
        root, "crictl", f"echo '{json.dumps({'items': [{'metadata': meta, 'state': state}]})}'\n"
    )
    answer = runtimes.pod("u-1", time.monotonic() + 5)
    assert answer is not None
    assert (answer.state, answer.name) == (word, "prod/llm-0")
    assert runtimes.pod("u-2", time.monotonic() + 5) is None


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("JobId=7 JobName=x JobState=RUNNING Reason=None", "live"),
        ("JobId=7 JobName=x JobState=COMPLETED ExitCode=0:0", "ended"),
        ("JobId=7 JobName=x JobState=CANCELLED ExitCode=0:0", "ended"),
        ("JobId=7 JobName=x JobState=SOMETHING_NEW", None),
    ],
)
def test_slurm_says_what_a_job_does(root: Path, said: str, state: str | None) -> None:
    client(root, "scontrol", f"echo '{said}'\n")
    answer = runtimes.job("7", time.monotonic() + 5)
    assert answer is not None
    assert answer.state == state


def test_slurm_that_has_forgotten_a_job_proves_nothing(root: Path) -> None:
    client(root, "scontrol", "echo 'slurm_load_jobs error: Invalid job id' >&2; exit 1\n")
    assert runtimes.job("7", time.monotonic() + 5) is None
