"""processes.identity on real processes, with psutil as an independent oracle."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest

from fleetmem.agent.kernel import sysroot, tasks
from fleetmem.agent.model import PARTIAL, Trouble
from fleetmem.agent.probes import processes
from tests.unit.agent.probe_actors import actor, others_sleep, state_of, until

FAMILY = """
import signal, socket
def launch(work, own_session=False):
    '''Start a launcher that starts a worker: (launcher, worker).'''
    global told
    back, told = os.pipe()
    launcher = os.fork()
    if launcher == 0:
        os.close(back)
        os.setsid()
        worker = os.fork()
        if worker == 0:
            if own_session:
                os.setsid()
            work()
            os.close(told)
            rest()
        os.write(told, b"%d" % worker)
        os.close(told)
        rest()
    os.close(told)
    with os.fdopen(back) as file:               # to its end: all have closed the other one
        return launcher, int(file.read())
def born(work):
    '''Start a child; it has done its work when this returns.'''
    back, done = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(back)
        work()
        os.close(done)
        rest()
    os.close(done)
    os.read(back, 1)
    os.close(back)
    return child
def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
"""
# A stand-in for an init of this very test: it adopts what its descendants leave.
REAPER = (
    """
rename("tini")
libc.prctl(36, 1, 0, 0, 0)                       # PR_SET_CHILD_SUBREAPER
"""
    + FAMILY
)


def identities(*pids: int) -> dict[int, dict[str, Any]]:
    """Rows by pid. Other processes of the machine may be unreadable: then it is partial."""
    return {row["pid"]: dict(row) for row in reading_of(list(pids))["processes"]}


def reading_of(pids: list[int] | None) -> Any:
    """The reading, complete or partial."""
    try:
        return processes.processes_identity(pids=pids)
    except Trouble as trouble:
        if trouble.outcome != PARTIAL or trouble.reading is None:
            raise
        return trouble.reading


def test_psutil_agrees() -> None:
    script = """
    for _ in range(3):
        threading.Thread(target=rest).start()
    say("ready"); rest()
    """
    with actor(script) as one:
        until(lambda: state_of(one.pid) == "S" and others_sleep(one.pid))
        before = time.time()
        row = identities(one.pid)[one.pid]
        after = time.time()
        oracle = psutil.Process(one.pid)
        assert row["ppid"] == oracle.ppid() == os.getpid()
        assert row["uid"] == oracle.uids().real
        assert row["user"] == oracle.username()
        assert row["tasks"] == oracle.num_threads() == 4
        assert row["title"] == " ".join(oracle.cmdline()).replace("\n", " ")[:256]
        assert row["comm"] == oracle.name()[:15]
        assert row["exe"] == oracle.exe()
        since_boot = row["start_time"] / os.sysconf("SC_CLK_TCK")
        assert abs(since_boot - (oracle.create_time() - psutil.boot_time())) < 0.02
        born = oracle.create_time()
        assert before - born - 2.0 < row["age_seconds"] < after - born + 2.0
        assert row["state"] == "S"
        assert [step["pid"] for step in row["ancestors"]] == [p.pid for p in oracle.parents()]
        assert abs(row["resident_bytes"] - oracle.memory_info().rss) < 1 << 20
    assert row["alive"] is True
    assert row["kernel_thread"] is False
    assert row["sid"] == row["pgid"] == one.pid
    assert row["group_leader_alive"] is None
    assert row["launcher_alive"] is True
    assert row["nspids"][-1] == one.pid
    assert row["pid_namespace"] == int(os.readlink("/proc/self/ns/pid")[5:-1])


def test_numbers_without_a_process_are_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    reading = processes.processes_identity(pids=[child.pid, child.pid])
    assert reading == {"processes": [], "gone": [child.pid], "denied": 0}


def test_the_number_of_a_thread_is_gone() -> None:
    script = """
    thread = threading.Thread(target=rest)
    thread.start()
    say("task", thread.native_id); rest()
    """
    with actor(script) as one:
        tid = int(one.words.pop())
        reading = processes.processes_identity(pids=[tid])
    assert reading["gone"] == [tid]


def test_a_process_that_waits_for_its_parent_to_collect_it_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    until(lambda: state_of(child.pid) == "Z")
    try:
        row = identities(child.pid)[child.pid]
    finally:
        child.wait()
    assert row["alive"] is False
    assert row["state"] == "Z"
    assert row["resident_bytes"] is None
    assert row["orphaned_pipes"] == 0


def test_a_leader_that_has_exited_leaves_the_process_alive() -> None:
    script = """
    import mmap
    shared = mmap.mmap(-1, 8 << 20)
    shared.write(bytes(8 << 20))
    started = threading.Event()
    def stay():
        started.set()
        rest()
    threading.Thread(target=stay).start()
    started.wait()
    say("ready")
    libc.syscall(EXIT, 0)
    """
    with actor(script) as one:
        until(lambda: state_of(one.pid) == "Z")
        row = identities(one.pid)[one.pid]
    assert row["state"] == "Z"
    assert row["alive"] is True
    assert row["title"].startswith(sys.executable)
    assert row["pinned_bytes"] >= 8 << 20
    assert row["exe"] is not None


def test_a_title_is_one_line_of_bounded_length() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)", "caf\udce9", "x" * 5000]
    )
    try:
        until(lambda: b"xxx" in sysroot.read(f"/proc/{child.pid}/cmdline"))
        title = identities(child.pid)[child.pid]["title"]
    finally:
        child.kill()
        child.wait()
    assert len(title) == 256
    assert "\0" not in title
    assert "caf\ufffd" in title


def test_an_orphan_has_no_launcher_and_no_group_leader() -> None:
    script = (
        REAPER
        + """
launcher, worker = launch(lambda: None)
say(worker, launcher); end(launcher); say("now"); rest()
"""
    )
    with actor(script) as one:
        worker = int(one.words[0])
        assert one.process.stdout is not None
        one.process.stdout.readline()
        row = identities(worker)[worker]
        one.words.remove(one.words[1])
    assert row["ppid"] == one.pid
    assert row["launcher_alive"] is False
    assert row["group_leader_alive"] is False


def test_with_its_launcher_a_process_is_in_use() -> None:
    script = REAPER + "\nlauncher, worker = launch(lambda: None)\nsay(worker, launcher); rest()"
    with actor(script) as one:
        worker, launcher = int(one.words[0]), int(one.words[1])
        row = identities(worker)[worker]
    assert row["ppid"] == launcher
    assert row["launcher_alive"] is True
    assert row["group_leader_alive"] is True


def test_what_a_reaper_itself_started_in_its_group_has_a_launcher() -> None:
    script = FAMILY + '\nrename("tini"); say(born(lambda: None)); rest()'
    with actor(script) as one:
        child = int(one.words[0])
        row = identities(child)[child]
    assert row["launcher_alive"] is True


def test_a_launcher_that_nobody_collected_is_dead() -> None:
    script = (
        REAPER
        + """
launcher, worker = launch(lambda: None)
say(worker, launcher)
"""
    )
    # The launcher is a zombie of the reaper, the worker still has it as its parent only
    # until the kernel hands it over, which happens at the launcher's exit.
    script += "os.kill(launcher, signal.SIGKILL); say('now'); rest()"
    with actor(script) as one:
        worker, launcher = int(one.words[0]), int(one.words[1])
        assert one.process.stdout is not None
        one.process.stdout.readline()
        until(lambda: state_of(launcher) == "Z")
        row = identities(worker)[worker]
    assert row["launcher_alive"] is False
    assert row["group_leader_alive"] is False


# --- sockets and pipes ---------------------------------------------------------------------


def test_listening_sockets_and_their_ports() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        with actor("say('ready'); rest()", pass_fds=(server.fileno(),)) as one:
            assert identities(one.pid)[one.pid]["listening"] is False
            server.listen()
            row = identities(one.pid)[one.pid]
    assert row["listening"] is True
    assert row["listening_ports"] == [port]


def test_a_listening_unix_socket_counts() -> None:
    script = """
    import socket
    s = socket.socket(socket.AF_UNIX); s.bind(b"\\0fleetmem-test-%d" % os.getpid()); s.listen()
    say("ready"); rest()
    """
    with actor(script) as one:
        row = identities(one.pid)[one.pid]
    assert row["listening"] is True
    assert row["listening_ports"] == []


WORKER_WITH_PIPES = (
    REAPER
    + """
down = os.pipe()        # launcher writes, worker reads
up = os.pipe()          # worker writes, launcher reads
pair = socket.socketpair()
def work():
    os.close(down[1]); os.close(up[0]); pair[0].close()
launcher, worker = launch(work, own_session=OWN)
for fd in (*down, *up): os.close(fd)
pair[0].close(); pair[1].close()
"""
)


@pytest.mark.parametrize("own", [False, True])
def test_ends_that_only_the_dead_launcher_had_are_orphaned(own: bool) -> None:
    script = WORKER_WITH_PIPES.replace("OWN", str(own))
    script += "say(worker, launcher); sys.stdin; end(launcher); say('now'); rest()"
    with actor(script) as one:
        worker = int(one.words[0])
        assert one.process.stdout is not None
        one.process.stdout.readline()
        one.words.remove(one.words[1])
        row = identities(worker)[worker]
    assert row["orphaned_pipes"] == 3
    assert row["live_peers"] == []
    assert row["launcher_alive"] is False


def test_a_live_launcher_is_a_live_peer() -> None:
    script = WORKER_WITH_PIPES.replace("OWN", "False") + "say(worker, launcher); rest()"
    with actor(script) as one:
        worker, launcher = int(one.words[0]), int(one.words[1])
        row = identities(worker)[worker]
    assert row["orphaned_pipes"] == 0
    assert row["live_peers"] == [launcher]


def test_a_pipe_with_both_ends_in_the_family_proves_nothing() -> None:
    script = (
        FAMILY
        + """
inner = os.pipe()
child = born(lambda: os.close(inner[0]))
os.close(inner[1])
own = os.pipe()
say(child); rest()
"""
    )
    with actor(script) as one:
        child = int(one.words[0])
        rows = identities(one.pid, child)
    assert rows[one.pid]["orphaned_pipes"] == 0
    assert rows[one.pid]["live_peers"] == []


def test_a_parent_outside_the_family_of_its_child_is_a_peer() -> None:
    script = (
        FAMILY
        + """
inner = os.pipe()
child = born(lambda: os.close(inner[1]))
os.close(inner[0])
say(child); rest()
"""
    )
    with actor(script) as one:
        child = int(one.words[0])
        row = identities(child)[child]
    assert row["orphaned_pipes"] == 0
    assert row["live_peers"] == [one.pid]


def test_siblings_of_a_dead_launcher_are_one_family() -> None:
    """Workers that inherited each other's pipe ends do not keep each other in use."""
    script = (
        REAPER
        + """
    """
        + """
ring = os.pipe()
def first():
    os.close(ring[0])
    twin = os.fork()
    if twin == 0:
        os.setpgid(0, 0)
        os.close(told)
        rest()
launcher, worker = launch(first)
os.close(ring[1])
say(worker, launcher); end(launcher); say("now"); rest()
"""
    )
    with actor(script) as one:
        worker = int(one.words[0])
        assert one.process.stdout is not None
        one.process.stdout.readline()
        one.words.remove(one.words[1])
        twins = [child.pid for child in psutil.Process(worker).children()]
        row = identities(worker)[worker]
        reader = row["live_peers"]
        for twin in twins:
            os.kill(twin, signal.SIGKILL)
    # The reaper kept the reading end: a peer, though the writing end lies in two siblings.
    assert reader == [one.pid]
    assert row["orphaned_pipes"] == 0


def test_standard_descriptors_do_not_count() -> None:
    read, write = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"],
        stdout=write,
        stdin=subprocess.DEVNULL,
    )
    os.close(write)
    os.close(read)
    try:
        row = identities(child.pid)[child.pid]
    finally:
        child.kill()
        child.wait()
    assert row["orphaned_pipes"] == 0
    assert row["live_peers"] == []


def test_a_connection_within_the_host_has_a_live_peer() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client = socket.create_connection(server.getsockname())
        script = """
        import socket
        s = socket.socket(fileno=NUMBER)
        say("ready"); rest()
        """.replace("NUMBER", str(client.fileno()))
        with actor(script, pass_fds=(client.fileno(),)) as one:
            client.close()
            accepted, _ = server.accept()
            row = identities(one.pid)[one.pid]
            accepted.close()
            after = identities(one.pid)[one.pid]
    assert row["live_peers"] == [os.getpid()]
    assert after["live_peers"] == []


def test_a_pipe_held_where_this_agent_cannot_look_is_no_orphan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel is asked through the pipe itself."""
    read, write = os.pipe()
    real = sysroot.pids
    with actor("say('ready'); rest()", pass_fds=(read,)) as one:
        os.close(read)
        monkeypatch.setattr(sysroot, "pids", lambda: [p for p in real() if p != os.getpid()])
        row = identities(one.pid)[one.pid]
        os.close(write)
        after = identities(one.pid)[one.pid]
    assert row["orphaned_pipes"] is None
    assert row["live_peers"] is None
    assert after["orphaned_pipes"] == 1
    assert after["live_peers"] == []


def test_all_holders_are_looked_at_where_no_pids_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fleetmem.agent.probes import holders

    me = tasks.stat(os.getpid())
    assert me is not None
    monkeypatch.setattr(holders, "scan", lambda: {"holders": [{"pid": os.getpid()}]})
    reading = reading_of(None)
    assert [row["pid"] for row in reading["processes"]] == [os.getpid()]
    assert reading["processes"][0]["start_time"] == me.start_time
