"""TERM that cannot work, told by the kernel's own masks; and TERM that does, although blocked."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fleetmem.agent.kernel import dispositions, identity
from tests.unit.agent.probe_actors import until

SIGNALFD4 = 289 if platform.machine() == "x86_64" else 74
BLOCK = "signal.pthread_sigmask(signal.SIG_BLOCK, {15})"
ACTORS = {
    "default": ("", None),
    "handles": ("signal.signal(15, lambda *_: None)", None),
    "ignores": ("signal.signal(15, signal.SIG_IGN)", "ignored"),
    "blocks": (BLOCK, "blocked"),
    "blocks and ignores": (f"{BLOCK}; signal.signal(15, signal.SIG_IGN)", "blocked"),
    "one thread takes it": (
        "import threading; threading.Thread(target=time.sleep, args=(600,)).start(); " + BLOCK,
        None,
    ),
    "waits for it": (
        f"{BLOCK}; import threading; "
        "threading.Thread(target=signal.sigwait, args=({15},)).start(); time.sleep(0.2)",
        None,
    ),
    "reads it from a descriptor": (
        f"{BLOCK}; import ctypes; m = ctypes.c_uint64(1 << 14); "
        f"assert ctypes.CDLL(None).syscall({SIGNALFD4}, -1, ctypes.byref(m), 8, 0) > 0",
        None,
    ),
}
STOPPED = "import os; os.kill(os.getpid(), 19)"


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has done what the test names, and sleeps."""
    code = f"import signal, time\n{request.param}\nprint(1, flush=True)\ntime.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    if request.param != STOPPED:
        process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    ("started", "reason"), list(ACTORS.values()), indirect=["started"], ids=list(ACTORS)
)
def test_why_term_cannot_work(started: subprocess.Popen[bytes], reason: str | None) -> None:
    until(lambda: (identity.stat(started.pid) or ("",))[0] == "S")
    if reason is None:
        assert dispositions.deaf(started.pid) is None
    else:  # on its way into sleep the kernel does not say yet where a task waits
        until(lambda: dispositions.deaf(started.pid) == reason)


@pytest.mark.parametrize("started", [STOPPED], indirect=True)
def test_a_stopped_process_does_not_act_on_term(started: subprocess.Popen[bytes]) -> None:
    until(lambda: (identity.stat(started.pid) or ("",))[0] == "T")
    assert dispositions.deaf(started.pid) == "stopped"
    started.send_signal(signal.SIGCONT)
    until(lambda: dispositions.deaf(started.pid) is None)


def test_init_of_a_namespace_needs_a_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    def masks(caught: int, nspids: str) -> dispositions.Masks:
        return dispositions.Masks(
            b"State:\tS (sleeping)\nSigPnd:\t0\nShdPnd:\t0\nSigBlk:\t0\nSigIgn:\t0\n"
            + b"SigCgt:\t%x\nNSpid:\t%s\n" % (caught, nspids.encode())
        )

    for caught, nspids, reason in (
        (0, "50 1", "init"),
        (1 << 14, "50 1", None),
        (0, "50 2", None),
        (0, "50", None),
    ):
        one = masks(caught, nspids)
        monkeypatch.setattr(dispositions, "_leader", lambda _pid, one=one: one)
        monkeypatch.setattr(dispositions, "_tasks", lambda _pid, one=one: [one])
        assert dispositions.deaf(7) == reason, nspids


def test_what_is_gone_is_not_deaf() -> None:
    assert dispositions.deaf(2**22 + 7) is None
    assert dispositions.outcome(2**22 + 7, 5, "KILL") == "gone"
