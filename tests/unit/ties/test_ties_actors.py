"""Ties between real processes of this machine: each kind, and where its other end is."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fleetmem.agent.model import Trouble
from fleetmem.agent.probes import ties
from fleetmem.agent.ties.ends import Ends, Links
from fleetmem.agent.ties.tables import Tables
from fleetmem.agent.ties.walk import Walk
from tests.unit.agent.probe_actors import Actor, actor, until


def look(*pids: int) -> dict[str, Any]:
    """A reading, whatever this machine keeps from its tests."""
    try:
        return dict(ties.processes_ties(pids=list(pids)))
    except Trouble as trouble:
        return dict(trouble.reading or {})


def row(reading: dict[str, Any], pid: int) -> dict[str, Any]:
    (found,) = [one for one in reading["processes"] if one["pid"] == pid]
    return dict(found)


def links(reading: dict[str, Any], kind: str, pid: int) -> list[dict[str, Any]]:
    return [one for one in reading["links"] if one["kind"] == kind and one["pid"] == pid]


def ends(reading: dict[str, Any], kind: str, pid: int) -> set[tuple[str, int | None]]:
    return {(one["where"], one["other"]) for one in links(reading, kind, pid)}


@contextmanager
def two(script: str, *, pass_fds: tuple[int, ...] = ()) -> Iterator[tuple[Actor, int]]:
    """An actor and the child whose pid it says."""
    with actor(script, pass_fds=pass_fds) as one:
        yield one, int(one.words[0])


# --- parents, sessions, groups --------------------------------------------------------------


def test_a_parent_a_session_and_a_group_have_their_leaders() -> None:
    with two("child = os.fork()\nif child == 0:\n rest()\nsay(child)\nrest()") as (one, child):
        seen = look(child)
        assert ends(seen, "parent", child) == {("here", one.pid)}
        assert ends(seen, "session", child) == {("here", one.pid)}
        assert ends(seen, "group", child) == {("here", one.pid)}
        assert row(seen, child)["asked"] is True
        assert row(seen, one.pid)["asked"] is False
        assert row(seen, one.pid)["adopter"] is False


def test_a_leader_that_has_ended_is_nobody() -> None:
    """In a session whose leader was killed; who adopted it is not who started it."""
    script = """
        read, write = os.pipe()
        libc.prctl(36, 1, 0, 0, 0)               # this one adopts
        middle = os.fork()
        if middle == 0:
            os.setsid()
            child = os.fork()
            if child == 0:
                libc.prctl(1, 0, 0, 0, 0)
                os.write(write, b"%d" % os.getpid())
                rest()
            rest()
        child = int(os.read(read, 20))
        os.kill(middle, 9)
        os.waitpid(middle, 0)
        say(child)
        rest()
    """
    with actor(script) as one:
        child = int(one.words[0])
        seen = look(child)
        assert ends(seen, "session", child) == {("nobody", None)}
        assert ends(seen, "group", child) == {("nobody", None)}


def test_who_is_in_no_session_of_its_parent_was_started_by_somebody_else() -> None:
    """The subreaper is not the leader of its own session, so it never left another one."""
    script = """
        if os.fork():
            rest()
        libc.prctl(36, 1, 0, 0, 0)
        read, write = os.pipe()
        middle = os.fork()
        if middle == 0:
            os.setsid()
            child = os.fork()
            if child == 0:
                libc.prctl(1, 0, 0, 0, 0)
                os.write(write, b"%d" % os.getpid())
                rest()
            rest()
        child = int(os.read(read, 20))
        os.kill(middle, 9)
        os.waitpid(middle, 0)
        say(child, os.getpid())
        rest()
    """
    with actor(script) as one:
        child, reaper = map(int, one.words)
        seen = look(child)
        assert row(seen, child)["ppid"] == reaper
        assert ends(seen, "parent", child) == {("nobody", None)}
        assert row(seen, reaper)["adopter"] is True


# --- forks ------------------------------------------------------------------------------------


def test_forks_are_kin_and_an_exec_ends_it() -> None:
    script = """
        child = os.fork()
        if child == 0:
            os.setsid()
            rest()
        other = os.fork()
        if other == 0:
            os.execv("/bin/sleep", ["sleep", "3600"])
        say(child, other)
        rest()
    """
    with actor(script) as one:
        child, other = map(int, one.words)
        until(lambda: os.readlink(f"/proc/{other}/exe").endswith(("sleep", "coreutils")))
        seen = look(child, other)
        assert ends(seen, "fork", child) == {("here", one.pid)}
        assert row(seen, child)["layout"] == row(seen, one.pid)["layout"] is not None
        assert row(seen, other)["layout"] != row(seen, one.pid)["layout"]
        assert ends(seen, "fork", other) == set()


def test_a_fork_in_a_session_of_its_own_leads_back_to_the_living() -> None:
    """Forked twice and adopted: neither a parent nor a pipe tells of the one it came from."""
    script = """
        read, write = os.pipe()
        middle = os.fork()
        if middle == 0:
            os.setsid()
            child = os.fork()
            if child == 0:
                libc.prctl(1, 0, 0, 0, 0)
                os.write(write, b"%d" % os.getpid())
                os.close(write), os.close(read), os.close(1)
                rest()
            os._exit(0)
        child = int(os.read(read, 20))
        os.close(write), os.close(read)
        os.waitpid(middle, 0)
        say(child)
        rest()
    """
    with actor(script) as one:
        child = int(one.words[0])
        seen = look(child)
        assert ("here", one.pid) in ends(seen, "fork", child)
        assert one.pid in {found["pid"] for found in seen["processes"]}


# --- pipes ------------------------------------------------------------------------------------


def test_the_other_end_of_a_pipe_has_a_name() -> None:
    script = """
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(write)
            rest()
        os.close(read)
        say(child)
        rest()
    """
    with two(script) as (one, child):
        seen = look(child)
        (tie,) = [found for found in links(seen, "pipe", child) if found["reads"]]
        assert (tie["where"], tie["other"], tie["standard"]) == ("here", one.pid, False)
        assert (tie["reads"], tie["writes"]) == (True, False)


def test_a_pipe_whose_other_end_is_closed_everywhere_has_nobody() -> None:
    """The kernel says so of the pipe itself, whatever this user can see of others."""
    with actor("read, write = os.pipe()\nos.close(write)\nsay(read)\nrest()") as one:
        (tie,) = [found for found in links(look(one.pid), "pipe", one.pid) if found["reads"]]
        assert (tie["where"], tie["other"]) == ("nobody", None)


def test_a_pipe_with_both_ends_in_one_process_is_no_tie() -> None:
    with actor("say(*os.pipe())\nrest()") as one:
        assert not [found for found in links(look(one.pid), "pipe", one.pid) if found["reads"]]


def test_who_only_reads_standard_output_has_a_row_and_is_not_walked() -> None:
    """A reader with a session of its own, as a log collector has."""
    script = """
        read, write = os.pipe()
        reader = os.fork()
        if reader == 0:
            os.dup2(read, 0)
            os.execv("/bin/cat", ["cat"])
        writer = os.fork()
        if writer == 0:
            os.dup2(write, 1)
            os.dup2(write, 2)
            os.closerange(3, 100)
            os.execv("/bin/sleep", ["sleep", "3600"])
        os.close(read), os.close(write)
        say(writer, reader)
        rest()
    """
    with actor(script) as one:
        writer, reader = map(int, one.words)
        for pid in (writer, reader):
            until(lambda pid=pid: b"python" not in Path(f"/proc/{pid}/cmdline").read_bytes())
        seen = look(writer)
        (tie,) = [found for found in links(seen, "pipe", writer) if found["writes"]]
        assert (tie["standard"], tie["reads"], tie["other"]) == (True, False, reader)
        assert row(seen, reader)["asked"] is False
        assert not [found for found in seen["links"] if found["pid"] == reader]


def test_a_named_pipe_is_found_by_its_numbers(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    mine = os.open(fifo, os.O_RDWR)
    try:
        with actor(f"file = os.open({str(fifo)!r}, os.O_WRONLY)\nsay('ready')\nrest()") as one:
            found = [tie for tie in links(look(one.pid), "pipe", one.pid) if tie["path"]]
            assert [(tie["where"], tie["other"], tie["path"]) for tie in found] == [
                ("here", os.getpid(), str(fifo))
            ]
    finally:
        os.close(mine)


def test_many_that_share_a_pipe_are_connected_by_few_rows() -> None:
    script = """
        read, write = os.pipe()
        children = []
        for _ in range(30):
            child = os.fork()
            if child == 0:
                rest()
            children.append(child)
        say(*children)
        rest()
    """
    with actor(script) as one:
        seen = look(int(one.words[-1]))
        rows = [tie for tie in seen["links"] if tie["kind"] == "pipe" and not tie["standard"]]
        assert len(rows) < 4 * 31
        near = {one.pid}
        for _ in range(31):
            near |= {tie["other"] for tie in rows if tie["pid"] in near}
            near |= {tie["pid"] for tie in rows if tie["other"] in near}
        assert {int(word) for word in one.words} <= near


# --- Unix sockets -----------------------------------------------------------------------------


def test_a_socket_pair_and_its_end() -> None:
    script = """
        ours, theirs = (__import__("socket")).socketpair()
        child = os.fork()
        if child == 0:
            ours.close()
            rest()
        theirs.close()
        say(child)
        rest()
    """
    with two(script) as (one, child):
        assert ("here", one.pid) in ends(look(child), "unix", child)
        os.kill(one.pid, signal.SIGSTOP)  # its own end stays open
        os.kill(child, signal.SIGKILL)
        until(lambda: Path(f"/proc/{child}/stat").read_text().split(") ")[1][0] == "Z")
        seen = look(one.pid)
        (tie,) = links(seen, "unix", one.pid)
        assert (tie["where"], tie["closed"]) == ("nobody", True)


SERVER = """
    import socket
    server = socket.socket({family})
    server.bind({place})
    server.listen(8)
    say("ready")
    {accept}
    rest()
"""


def test_a_client_of_a_unix_socket_below_run_is_a_tie_like_any_other(tmp_path: Path) -> None:
    """Places below /run are where engines put their ipc; nothing is skipped by its path."""
    folder = Path("/run") if os.access("/run", os.W_OK) else tmp_path
    place = folder / f"fleetmem-test-{os.getpid()}.sock"
    script = SERVER.format(
        family="socket.AF_UNIX", place=repr(str(place)), accept="held = server.accept()"
    )
    try:
        with actor(script) as one, socket.socket(socket.AF_UNIX) as client:
            client.connect(str(place))
            until(lambda: len(os.listdir(f"/proc/{one.pid}/fd")) >= 5)
            seen = look(one.pid)
            tie = next(tie for tie in links(seen, "unix", one.pid) if tie["other"] == os.getpid())
            assert (tie["where"], tie["path"]) == ("here", str(place))
            assert tie["listener"] is not None
            listener = seen["listeners"][tie["listener"]]
            assert (listener["kind"], listener["path"]) == ("unix", str(place))
            assert listener["pids"] == [one.pid]
    finally:
        place.unlink(missing_ok=True)


def test_a_client_that_was_not_accepted_yet_is_tied_all_the_same(tmp_path: Path) -> None:
    place = tmp_path / "s"
    script = SERVER.format(family="socket.AF_UNIX", place=repr(str(place)), accept="")
    with actor(script) as one, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(place))
        seen = look(one.pid)
        assert ("here", os.getpid()) in ends(seen, "unix", one.pid)
        child = os.getpid()
        back = look(child)
        assert ("here", one.pid) in ends(back, "unix", child)


def test_who_sends_to_a_datagram_socket_is_tied_to_its_owner(tmp_path: Path) -> None:
    place = tmp_path / "d"
    script = f"""
        import socket
        inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        inbox.bind({str(place)!r})
        say("ready")
        rest()
    """
    with actor(script) as one, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(str(place))
        assert ("here", os.getpid()) in ends(look(one.pid), "unix", one.pid)


# --- TCP --------------------------------------------------------------------------------------


def test_both_ends_of_a_loopback_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"""
            import socket
            held = socket.create_connection(("127.0.0.1", {port}))
            say("ready")
            rest()
        """
        with actor(script) as one:
            held, _ = server.accept()
            with held:
                (tie,) = links(look(one.pid), "tcp", one.pid)
                assert (tie["where"], tie["other"]) == ("here", os.getpid())
                assert (tie["address"], tie["port"]) == ("127.0.0.1", port)
                assert (tie["closed"], tie["listener"]) == (False, None)
                os.kill(one.pid, signal.SIGSTOP)
            until(lambda: links(look(one.pid), "tcp", one.pid)[0]["closed"])
            (tie,) = links(look(one.pid), "tcp", one.pid)
            assert tie["where"] == "nobody"


def test_a_connection_that_was_not_accepted_leads_to_the_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"""
            import socket
            held = socket.create_connection(("127.0.0.1", {port}))
            say("ready")
            rest()
        """
        with actor(script) as one:
            assert ends(look(one.pid), "tcp", one.pid) == {("here", os.getpid())}


def test_a_listener_and_who_came_in_through_it() -> None:
    script = """
        import socket
        server = socket.create_server(("127.0.0.1", 0))
        say(server.getsockname()[1] + 1000000)
        held = server.accept()
        rest()
    """
    with actor(script) as one:
        port = int(one.words[0]) - 1000000
        with socket.create_connection(("127.0.0.1", port)):
            until(lambda: any(tie["other"] for tie in links(look(one.pid), "tcp", one.pid)))
            seen = look(one.pid)
            (tie,) = links(seen, "tcp", one.pid)
            assert (tie["other"], tie["local_port"]) == (os.getpid(), port)
            listener = seen["listeners"][tie["listener"]]
            assert (listener["address"], listener["port"]) == ("127.0.0.1", port)
            assert listener["ephemeral"] is True
        one.words.clear()


def test_a_connected_udp_socket_is_a_tie_that_was_not_read() -> None:
    """Whoever is at its other end may be on another host; one that is merely bound is no tie."""
    script = """
        import socket
        bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        bound.bind(("127.0.0.1", 0))
        sends = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        if os.environ.get("UDP") == "connected":
            sends.connect(bound.getsockname())
        say(os.getpid())
        rest()
    """
    with two(script) as (_, child):
        assert ends(look(child), "tcp", child) == set()
    with two(script.replace("if os.environ", "if True or os.environ")) as (_, child):
        seen = look(child)
        assert ends(seen, "tcp", child) == {("unreadable", None)}
        assert "tcp" in row(seen, child)["unreadable"]


def test_a_socket_that_is_not_connected_is_no_tie_whatever_else_was_not_read() -> None:
    """It stands in no table; where a namespace could not be read the kernel is asked for it."""
    script = "import socket\nheld = socket.socket()\nsay('ready')\nrest()"
    with actor(script) as one:
        walk = Walk(time.monotonic() + 10)
        walk.files([one.pid])
        tables, found = Tables(), Links()
        tables.unread.add("tcp")
        assert "tcp" not in Ends(walk, tables, found, seen_all=True).of(one.pid)
        assert not [row for row in found.rows() if row["kind"] == "tcp"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = f"""
            import socket
            held = socket.create_connection(("127.0.0.1", {server.getsockname()[1]}))
            say("ready")
            rest()
        """
        with actor(script) as one:
            walk = Walk(time.monotonic() + 10)
            walk.files([one.pid])
            assert "tcp" in Ends(walk, tables, Links(), seen_all=True).of(one.pid)


# --- states, signals, tracers -----------------------------------------------------------------


def test_what_term_would_do() -> None:
    blocked = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [15])\nsay('x')\nrest()"
    for script, word in (
        ("say('x')\nrest()", "default"),
        ("import signal\nsignal.signal(15, signal.SIG_IGN)\nsay('x')\nrest()", "ignored"),
        ("import signal\nsignal.signal(15, print)\nsay('x')\nrest()", "handled"),
        (blocked, "blocked"),
    ):
        with actor(script) as one:
            assert row(look(one.pid), one.pid)["term"] == word


def test_a_stopped_process_says_so() -> None:
    with actor("say('x')\nrest()") as one:
        os.kill(one.pid, signal.SIGSTOP)
        until(lambda: row(look(one.pid), one.pid)["state"] == "T")


def test_a_tracer_is_a_tie_whichever_task_it_holds() -> None:
    """PTRACE_SEIZE of a task that is not the leader."""
    script = """
        task = []
        def other():
            task.append(libc.syscall({"x86_64": 186, "aarch64": 178}[platform.machine()]))
            rest()
        threading.Thread(target=other, daemon=True).start()
        while not task:
            time.sleep(0.01)
        libc.prctl(0x59616D61, -1, 0, 0, 0)
        say(task[0] + 100000000)
        rest()
    """
    with actor(script) as traced:
        task = int(traced.words.pop()) - 100000000
        tracer_script = f"""
            libc.ptrace.argtypes = [ctypes.c_long] * 4
            assert libc.ptrace(0x4206, {task}, 0, 0) == 0
            say("ready")
            rest()
        """
        with actor(tracer_script) as tracer:
            seen = look(traced.pid)
            assert row(seen, traced.pid)["tracer_pid"] == tracer.pid
            assert ends(seen, "tracer", traced.pid) == {("here", tracer.pid)}


def test_the_environment_names_owners_and_nothing_else() -> None:
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "print(1, flush=True); import time; time.sleep(3600)"],
        stdout=subprocess.PIPE,
        env={
            "INVOCATION_ID": "a" * 32,
            "SLURM_JOB_ID": "4711",
            "RAY_JOB_ID": "01000000",
            "HF_TOKEN": "secret",
        },
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()
        marks = row(look(child.pid), child.pid)["environment"]
        assert marks["invocation_id"] == "a" * 32
        assert marks["slurm_job_id"] == "4711"
        assert marks["values"] == {"RAY_JOB_ID": "01000000"}
    finally:
        child.kill()
        child.communicate()


def test_who_has_ended_is_gone_and_a_zombie_has_ended() -> None:
    with two("child = os.fork()\nif child == 0:\n os._exit(0)\nsay(child)\nrest()") as (_, child):
        until(lambda: row(look(child), child)["state"] == "Z")
        assert row(look(child), child)["alive"] is False
        assert links(look(child), "parent", child) == []
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    assert look(ended.pid)["gone"] == [ended.pid]


def test_a_walk_with_many_threads_at_work_holds_still() -> None:
    """Processes and descriptors that come and go while the walk is on break nothing."""
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            read, write = os.pipe()
            subprocess.run(["/bin/true"], check=True)
            os.close(read), os.close(write)

    workers = [threading.Thread(target=churn) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(10):
            assert row(look(os.getpid()), os.getpid())["alive"]
    finally:
        stop.set()
        for worker in workers:
            worker.join()
