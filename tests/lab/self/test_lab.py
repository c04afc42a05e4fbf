"""The hosts: separate, reachable, and gone afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.lab import api, state
from tests.lab.fixtures import LabFactory, wait_until
from tests.lab.inside import asking as inside
from tests.lab.making import kernel

pytestmark = pytest.mark.lab

NAMESPACES = ("pid", "mnt", "uts", "ipc")


def run(*words: str, mounts_of: int | None = None) -> subprocess.CompletedProcess[str]:
    """The command line, as a person uses it; in the mount namespace of *mounts_of*."""
    enter = ["nsenter", "--mount", "--target", str(mounts_of), "env", "-C", str(api.ROOT)]
    return subprocess.run(
        [*(enter if mounts_of else []), sys.executable, "-m", "tests.lab", *words],
        cwd=api.ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def gone(record: dict[str, object]) -> bool:
    """Whether the keeper and every pid 1 of a lab's record ended."""
    hosts = record["hosts"]
    assert isinstance(hosts, dict)
    rows = [(int(str(record["pid"])), record["start"])]
    rows += [(row["init"], row["start"]) for row in hosts.values()]
    return all(kernel.start_time(pid) != start for pid, start in rows)


def test_hosts_are_separate(shared_lab: api.Lab) -> None:
    seen: dict[str, set[str]] = {
        name: {os.readlink(f"/proc/self/ns/{name}")} for name in NAMESPACES
    }
    for host in shared_lab.hosts:
        assert shared_lab.ssh(host, "hostname").stdout.strip() == host
        for name in NAMESPACES:
            seen[name].add(shared_lab.exec(host, "readlink", f"/proc/1/ns/{name}").stdout.strip())
    assert {name: len(found) for name, found in seen.items()} == dict.fromkeys(NAMESPACES, 5)


@pytest.mark.parametrize(
    "place", ["/tmp", "/run", "/root", "/dev", "/dev/shm", "/home/ops", "/var/tmp", "/var/log"]
)
def test_what_a_host_writes_stays_there(shared_lab: api.Lab, place: str) -> None:
    first, second = list(shared_lab.hosts)[:2]
    mark = f"{place}/lab-mark-{os.getpid()}"
    assert shared_lab.exec(first, "touch", mark).returncode == 0
    assert not Path(mark).exists()
    assert shared_lab.exec(second, "test", "-e", mark).returncode == 1


def test_accounts(shared_lab: api.Lab) -> None:
    host = next(iter(shared_lab.hosts))
    assert shared_lab.ssh(host, "id -un; sudo -n id -un", "ops").stdout.split() == ["ops", "root"]
    guest = shared_lab.ssh(host, "id -un; sudo -n id -un", "guest")
    assert (guest.stdout.split(), guest.returncode) == (["guest"], 1)
    assert shared_lab.exec(host, "sh", "-c", "echo x >>/etc/passwd; wc -l </etc/hosts").stdout
    assert "\nx\n" not in Path("/etc/passwd").read_text("utf-8")


def test_the_machine_is_read_only_where_it_is_shared(shared_lab: api.Lab) -> None:
    host = next(iter(shared_lab.hosts))
    assert shared_lab.exec(host, "mkdir", "/sys/fs/cgroup/lab-mark").returncode == 1


def test_hosts_have_boots_of_their_own(shared_lab: api.Lab) -> None:
    command = "cat /proc/sys/kernel/random/boot_id"
    boots = {shared_lab.ssh(host, command).stdout for host in shared_lab.hosts}
    boots.add(Path("/proc/sys/kernel/random/boot_id").read_text("ascii"))
    assert len(boots) == len(shared_lab.hosts) + 1


def test_inventory(shared_lab: api.Lab) -> None:
    found = yaml.safe_load(shared_lab.inventory.read_text("utf-8"))
    here = str(shared_lab.directory)
    assert found["defaults"] == {
        "user": "root",
        "identity": f"{here}/id_ed25519",
        "known_hosts": f"{here}/known_hosts",
    }
    assert found["groups"] == {"lab": {"hosts": "gh200-[01-04]"}}
    for host, at in shared_lab.hosts.items():
        row = {"address": at.address, "port": 2222, "labels": {"lab": "1"}}
        assert found["hosts"][host] == row
        assert at.address.startswith("127.")


def test_exec_passes_everything_through(shared_lab: api.Lab) -> None:
    host = next(iter(shared_lab.hosts))
    script = "cat; echo problem >&2; exit 7"
    words = ["exec", str(shared_lab.directory), host, "--", "sh", "-c", script]
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab", *words],
        cwd=api.ROOT,
        input="given\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "given\n", "problem\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("exec", "{dir}", "gh200-99", "--", "true"), 1, "lab: no host gh200-99 in"),
        (("exec", "{dir}", "gh200-01"), 1, "lab: exec needs a command"),
        (("exec", "/nowhere", "gh200-01", "--", "true"), 1, "lab: no lab in /nowhere"),
        (("up", "--dir", "{dir}"), 1, "lab: a lab already runs in"),
        (("up", "--dir", "/proc/lab"), 1, "lab: /proc/lab: "),
        (("up", "--dir", "{dir}x", "-n", "0"), 1, "lab: a lab needs at least one host"),
        (("up", "--dir", "{dir}x", "--while", "4194305"), 1, "lab: --while 4194305"),
        (("hog", "{dir}", "gh200-01", "--kind", "plain", "--gpu", "9"), 1, "lab: the hog did not"),
    ],
)
def test_trouble_is_one_line(
    shared_lab: api.Lab, words: tuple[str, ...], code: int, said: str
) -> None:
    done = run(*(word.format(dir=shared_lab.directory) for word in words))
    assert done.returncode == code
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


def test_a_directory_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious", "utf-8")
    with pytest.raises(api.LabError, match="not empty: mine"):
        api.up(tmp_path, n=1)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_up_and_down_leave_nothing(tmp_path: Path) -> None:
    with own_mounts() as place:
        mounts = Path(f"/proc/{place}/mountinfo").read_text("utf-8")
        done = run("up", "-n", "8", "--dir", str(tmp_path / "lab"), mounts_of=place)
        assert json.loads(done.stdout)["hosts"] == 8
        record = state.load(tmp_path / "lab")
        running = api.attach(tmp_path / "lab")
        hog = running.hog("gh200-03", "term-ignorer")
        namespace = running.exec("gh200-03", "readlink", "/proc/self/ns/pid").stdout.strip()
        inhabitants = inhabitants_of(namespace)
        assert len(inhabitants) >= len({*hog.holders, *hog.helpers}) + 2  # init and sshd
        assert run("down", str(tmp_path / "lab"), mounts_of=place).returncode == 0
        assert gone(record)
        assert not [pid for pid, start in inhabitants.items() if kernel.start_time(pid) == start]
        assert not list(tmp_path.iterdir())
        assert Path(f"/proc/{place}/mountinfo").read_text("utf-8") == mounts
        assert run("down", str(tmp_path / "lab")).returncode == 0


REPLACE = """
set -e
mount -t tmpfs tmpfs /mnt; mkdir /mnt/upper /mnt/work
mount -t overlay overlay -o lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work /etc
cd "$1"; shift; "$@"
ldconfig
for name in passwd group hosts; do touch /etc/new; mv /etc/new /etc/$name; done
"""


def test_a_machine_that_replaces_its_files_takes_nothing_from_a_host(tmp_path: Path) -> None:
    """Installing a package renames a new ld.so.cache into place, and often a new passwd."""
    directory = tmp_path / "lab"
    up = [sys.executable, "-m", "tests.lab", "up", "-n", "1", "--dir", str(directory)]
    try:
        made = subprocess.run(
            ["unshare", "--mount", "sh", "-c", REPLACE, "sh", str(api.ROOT), *up],
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        lab = api.attach(directory)
        assert inside.used(lab, "gh200-01") == 0
        hog = lab.hog("gh200-01", "plain", 0, 4000, user="ops")
        assert inside.used(lab, "gh200-01") == 4000
        maps = lab.exec("gh200-01", "cat", f"/proc/{hog.holders[0]}/maps").stdout
        assert "nvidiactl" in maps
        assert "libnvidia-ml" not in maps
        assert lab.exec("gh200-01", "cat", "/etc/hosts").stdout.endswith(" gh200-01\n")
    finally:
        api.down(directory)


def test_a_hog_says_so_where_nvml_cannot_be_loaded(labs: LabFactory) -> None:
    lab = labs(n=1)
    assert lab.exec("gh200-01", "umount", "/etc/ld.so.cache").returncode == 0
    with pytest.raises(api.LabError, match="NVML cannot be loaded here: libnvidia-ml"):
        lab.hog("gh200-01", "plain")
    assert lab.exec("gh200-01", "sh", "-c", "ls /run/nvml-sim/charges").stdout == ""
    unit = lab.exec("gh200-01", "/run/lab/hog", "bystander", "0", "0")
    assert (unit.returncode, unit.stderr.startswith("hog: NVML cannot be")) == (1, True)


@contextlib.contextmanager
def own_mounts() -> Iterator[int]:
    """A process in a mount namespace in which only the test mounts anything; what is mounted
    below it spreads to it, as to a machine that shares its mounts."""
    script = "mount --make-rshared /; echo there; exec cat"
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as place:
        assert place.stdin is not None
        assert place.stdout is not None
        assert place.stdout.readline() == b"there\n"
        yield place.pid
        place.stdin.close()


def inhabitants_of(namespace: str) -> dict[int, int | None]:
    """Start times of all that live in a pid namespace."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{entry}/ns/pid") == namespace:
                found[int(entry)] = kernel.start_time(int(entry))
    return {pid: start for pid, start in found.items() if start is not None}


def test_labs_that_start_at_once_do_not_collide(tmp_path: Path) -> None:
    labs: list[api.Lab] = []
    errors: list[str] = []

    def start(directory: Path) -> None:
        try:
            labs.append(api.up(directory, n=2, while_pid=os.getpid()))
        except api.LabError as error:
            errors.append(str(error))

    wanted = [tmp_path / "a", tmp_path / "b", tmp_path / "c", tmp_path / "c"]
    threads = [threading.Thread(target=start, args=(path,)) for path in wanted]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(labs) == 3
        assert [error.startswith("a lab already runs in") for error in errors] == [True]
        addresses = {at.address for lab in labs for at in lab.hosts.values()}
        assert len(addresses) == 6
    finally:
        for path in wanted:
            api.down(path)


def test_a_killed_starter_takes_its_lab_along(tmp_path: Path) -> None:
    program = (
        "import os, sys, time; from pathlib import Path; from tests.lab import api; "
        "lab = api.up(Path(sys.argv[1]), n=2, while_pid=os.getpid()); "
        "lab.hog('gh200-01', 'term-ignorer'); print('up', flush=True); time.sleep(600)"
    )
    directory = tmp_path / "lab"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(directory)], cwd=api.ROOT, stdout=subprocess.PIPE
    ) as starter:
        try:
            assert starter.stdout is not None
            assert starter.stdout.readline() == b"up\n"
            record = state.load(directory)
            assert not gone(record)
        finally:
            starter.send_signal(signal.SIGKILL)
        starter.wait()
    wait_until("the lab ends", lambda: gone(record))
    wait_until("its files go", lambda: not directory.exists())


@pytest.mark.parametrize("seconds", [0.02, 0.12, 0.2, 0.3])
def test_a_starter_killed_midway_leaves_nothing(tmp_path: Path, seconds: float) -> None:
    directory = tmp_path / "lab"
    words = [sys.executable, "-m", "tests.lab", "up", "-n", "6", "--dir", str(directory)]
    # Its own end is what ends the lab where the kill comes too late.
    with subprocess.Popen(
        ["sh", "-c", 'exec "$@" --while $$', "sh", *words], cwd=api.ROOT, stdout=subprocess.DEVNULL
    ) as starter:
        time.sleep(seconds)
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    # A keeper that was forked just before may not have made the directory yet, and one that
    # is being started has no arguments for a moment: so it is looked at several times.
    for _ in range(10):
        wait_until(
            "everything is gone",
            lambda: not directory.exists() and not named_in_arguments(directory),
        )
        time.sleep(0.05)


def named_in_arguments(directory: Path) -> list[str]:
    """Pids of processes that were started with the path in their arguments."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.fsencode(directory) in Path(f"/proc/{entry}/cmdline").read_bytes():
                found.append(entry)
    return found


def test_a_killed_keeper_takes_the_hosts_along(tmp_path: Path) -> None:
    directory = tmp_path / "lab"
    running = api.up(directory, n=2)
    record = state.load(directory)
    try:
        running.hog("gh200-02", "orphan")
        os.kill(int(str(record["pid"])), signal.SIGKILL)
        wait_until("the hosts end", lambda: gone(record))
        with pytest.raises(api.LabError, match="gh200-02 is not running"):
            running.exec("gh200-02", "true")
    finally:
        api.down(directory)
    assert not directory.exists()


def test_the_directory_of_a_killed_lab_can_be_used_again(tmp_path: Path) -> None:
    directory = tmp_path / "lab"
    api.up(directory, n=1)
    os.kill(int(str(state.load(directory)["pid"])), signal.SIGKILL)
    wait_until("the lab ends", lambda: gone(state.load(directory)))
    running = api.up(directory, n=2)
    try:
        assert running.ssh("gh200-02", "hostname").stdout == "gh200-02\n"
    finally:
        running.down()


def test_network_of_its_own(labs: LabFactory) -> None:
    lab = labs(n=2, net=True)
    seen = {os.readlink("/proc/self/ns/net")}
    for host in lab.hosts:
        seen.add(lab.ssh(host, "readlink /proc/self/ns/net").stdout.strip())
    assert len(seen) == 3


def test_exposed_paths_are_seen(tmp_path: Path) -> None:
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "file").write_text("content", "utf-8")
    with api.lab(expose=[tmp_path / "shown"]) as lab:
        assert lab.ssh("gh200-01", f"cat {tmp_path}/shown/file", "ops").stdout == "content"


def test_many_gpus(labs: LabFactory) -> None:
    lab = labs(gpus=8)
    script = (
        "for n in 0 1 2 3 4 5 6 7; do exec 9<>/dev/nvidia$n && stat -c %t:%T /dev/nvidia$n; done"
    )
    numbers = lab.exec("gh200-01", "bash", "-c", script).stdout.split()
    assert len(set(numbers)) == 8
