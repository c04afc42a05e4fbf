"""sudo on hosts: with a password, without one, slow, denied; the password is seen nowhere."""

from __future__ import annotations

import io
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab import api
from tests.lab.desk import Desk, Said, inside, inventory, script

pytestmark = pytest.mark.lab

SECRET = "c0rrect-h0rse battery"
USERS = ("typist", "free", "tty", "nobody-knows")
AGENTS = {"gh200-01": 2, "gh200-02": 2, "gh200-03": 1}
"""How many agents a check of all rows starts on each host."""
SUDOERS = """\
Defaults env_reset, !lecture, passwd_tries=3
Defaults secure_path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
Defaults:tty requiretty
root ALL=(ALL:ALL) ALL
typist ALL=(ALL:ALL) ALL
free ALL=(ALL:ALL) NOPASSWD: ALL
tty ALL=(ALL:ALL) NOPASSWD: ALL
"""


@dataclass(frozen=True)
class Place:
    """Hosts with users of every kind, one inventory name each, and a slow sudo on the last."""

    lab: api.Lab
    desk: Desk
    folder: Path

    def check(self, hosts: str, password: str | None = None, *words: str) -> Said:
        """``hosts --check``; the password is the first line of stdin where there is one."""
        ask = ("--ask-sudo-password",) if password is not None else ()
        with self.desk.running(
            *("hosts", "--check", "-H", hosts, "-o", "json", *ask, *words), stdin=subprocess.PIPE
        ) as running:
            text = "" if password is None else password + "\n"
            out, err = running.communicate(text, timeout=100)
        assert "Traceback" not in err, err
        return Said(running.returncode, out, err)


def _password(lab: api.Lab, host: str) -> None:
    """Users with a password, which sudo checks with pam_unix."""
    etc = lab.directory / host / "etc"
    hashed = subprocess.run(
        ["openssl", "passwd", "-6", "-stdin"],
        input=SECRET,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    lines = {"passwd": "", "group": "", "shadow": ""}
    for number, user in enumerate(USERS, 1100):
        lines["passwd"] += f"{user}:x:{number}:{number}::/home/{user}:/bin/bash\n"
        lines["group"] += f"{user}:x:{number}:\n"
        lines["shadow"] += f"{user}:{hashed}:19000:0:99999:7:::\n"
    for name, more in lines.items():
        with (etc / name).open("a") as file:
            file.write(more)
    (etc / "sudoers").chmod(0o640)
    (etc / "sudoers").write_text(SUDOERS)
    (etc / "sudoers").chmod(0o440)
    for number, user in enumerate(USERS, 1100):
        inside(lab, host, f"install -d -o {number} -g {number} -m 700 /home/{user}")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("desk")
    with api.lab(n=3, gpus=1) as lab:
        for host in lab.hosts:
            _password(lab, host)
        script(lab, "gh200-03", "sudo", '#!/bin/sh\nsleep 10\nexec /run/real-sudo "$@"\n')
        inside(
            lab,
            "gh200-03",
            "touch /run/real-sudo; mount --bind /usr/bin/sudo /run/real-sudo;"
            " mount --bind /run/host/sudo /usr/bin/sudo",
        )
        rows: dict[str, dict[str, Any]] = {
            user: {"at": "gh200-01", "user": user, "sudo": True} for user in USERS
        }
        rows["slow"] = {"at": "gh200-03", "user": "typist", "sudo": True}
        rows["plain"] = {"at": "gh200-02", "user": "typist"}
        rows["root"] = {"at": "gh200-02"}
        desk = Desk(folder, folder / "none").with_inventory(inventory(lab, rows))
        yield Place(lab, desk, folder)


def codes(said: Said) -> dict[str, str | None]:
    rows = said.answer.envelope["hosts"]
    return {row["host"]: row["error"]["code"] if row["error"] else None for row in rows}


def user_of(said: Said, host: str) -> int:
    reading = said.answer.host(host)["readings"]["host.facts"]["reading"]
    return int(reading["uid"])


def test_without_a_password_each_user_has_its_own_line(place: Place) -> None:
    said = place.check("@all,!slow")
    assert codes(said) == {
        "typist": "sudo_password_required",
        "free": None,
        "tty": "sudo_tty_required",
        "nobody-knows": "sudo_password_required",
        "plain": None,
        "root": None,
    }
    assert said.code == 3
    assert user_of(said, "free") == user_of(said, "root") == 0
    assert user_of(said, "plain") != 0
    entry = said.answer.host("typist")
    assert "--ask-sudo-password" in entry["error"]["hint"]


def test_with_the_password_sudo_that_asks_gets_it_and_no_other(place: Place) -> None:
    watched = _Watch(place.lab)
    with watched:
        said = place.check("@all", SECRET)
    assert codes(said) == {
        "typist": None,
        "free": None,  # never asks: the password must not become the agent's input
        "tty": "sudo_tty_required",
        "nobody-knows": "sudo_denied",
        "slow": None,
        "plain": None,
        "root": None,
    }
    assert user_of(said, "typist") == user_of(said, "slow") == 0
    seen = {
        "screen": said.out + said.err,
        "processes": watched.seen,
        "state": "".join(
            path.read_bytes().decode("latin-1")
            for path in (place.folder / "state").rglob("*")
            if path.is_file()
        ),
        "host": inside(
            place.lab,
            "gh200-01",
            "cat /run/host/sshd.log /var/log/* 2>/dev/null || true; "
            "find /root /home /run/fleetmem /tmp -type f -exec cat {} + 2>/dev/null || true",
        ),
    }
    assert watched.met == set(AGENTS)  # it did look while the agents ran, at all of them
    assert "fleetmem-guard" in seen["processes"]
    for where, text in seen.items():
        assert SECRET not in text, where
        assert SECRET.split(maxsplit=1)[0] not in text, where


def test_a_wrong_password_is_tried_once(place: Place) -> None:
    said = place.check("typist,free", "guess")
    assert codes(said) == {"typist": "sudo_password_wrong", "free": None}
    assert said.code == 3
    assert "guess" not in said.err


def test_nothing_on_stdin_is_a_mistake_of_the_desk(place: Place) -> None:
    said = place.desk.run("hosts", "--check", "-H", "typist", "--ask-sudo-password", "-o", "json")
    assert (said.code, said.error["code"]) == (2, "usage_error")


def test_memory_comes_back_through_sudo(place: Place) -> None:
    hog = place.lab.hog("gh200-01", "retitled", 0, 4000)
    words = ("-H", "typist", "--yes", "-o", "json", "--grace-period", "1s", "--ask-sudo-password")
    with place.desk.running("reclaim", *words, stdin=subprocess.PIPE) as running:
        out, err = running.communicate(SECRET + "\n", timeout=100)
    answer = Said(running.returncode, out, err).answer
    assert answer.reclaim("typist")["verdict"] == "reclaimed"
    assert set(answer.targets("typist")) == set(hog.holders)
    assert SECRET.split(maxsplit=1)[0] not in out + err


class _Watch:
    """Collects command lines and environments of all processes of a lab while it runs.

    Agents live until they were looked at: their NVML waits until a look at a host has found
    as many as there will be. ``met``: the hosts on which that was so.
    """

    def __init__(self, lab: api.Lab) -> None:
        self._hosts = {
            os.readlink(f"/proc/{at.init}/ns/pid"): host for host, at in lab.hosts.items()
        }
        self._faults = {
            host: Path(f"/proc/{at.init}/root/run/nvml-sim/faults")
            for host, at in lab.hosts.items()
        }
        self.met: set[str] = set()
        self._text, self._end = io.StringIO(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def seen(self) -> str:
        return self._text.getvalue()

    def __enter__(self) -> None:
        for path in self._faults.values():
            path.write_text("init=wait\n")
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        for path in self._faults.values():
            path.write_text("")

    def _watch(self) -> None:
        while not self._end.wait(0.1):
            found = self._look()
            for host, count in AGENTS.items():
                if host not in self.met and found[host] >= count:
                    self.met.add(host)
                    self._faults[host].write_text("")

    def _look(self) -> Counter[str]:
        """Look at every process once; how many agents each host has that ask NVML."""
        asking: Counter[str] = Counter()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                host = self._hosts.get(os.readlink(f"/proc/{pid}/ns/pid"))
                if host is None:
                    continue
                for name in ("comm", "cmdline", "environ"):
                    text = Path(f"/proc/{pid}/{name}").read_bytes()
                    self._text.write(text.decode("latin-1").replace("\0", " ") + "\n")
                    asking[host] += name == "comm" and text == b"fleetmem-nvml\n"
            except OSError:
                continue
        return asking
