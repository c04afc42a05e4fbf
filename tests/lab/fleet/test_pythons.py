"""Hosts of every Python and every login shell that this machine can offer.

`make test-setup` installs every shell and the interpreters that packages have; which others are
tried depends on the machine. Those that are not here are named under the results.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import pythons
from tests.lab import api
from tests.lab.bad_days import no_python
from tests.lab.desk import Desk, Said, inside, inventory, script
from tests.pythons import OLDEST, key

pytestmark = pytest.mark.lab

SHELLS = ("sh", "bash", "dash", "zsh", "tcsh", "csh", "fish", "ksh", "mksh")
FOUND = pythons.found()
SHELLS_HERE = tuple(name for name in SHELLS if shutil.which(name, path="/bin:/usr/bin"))


def _prefix(path: str) -> Path:
    return Path(path).resolve().parent.parent


@dataclass(frozen=True)
class Place:
    """One host a Python, some hosts for shells and for what looks for an interpreter."""

    lab: api.Lab
    desk: Desk
    said: Said


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("desk")
    own = {v: path for v, path in FOUND.items() if not path.startswith("/usr")}
    expose = [_prefix(path) for path in own.values()]
    with api.lab(n=len(FOUND) + 3, gpus=1, expose=expose) as lab:
        hosts = iter(lab.hosts)
        rows: dict[str, dict[str, Any]] = {}
        for version, path in FOUND.items():
            rows[f"py{version}"] = {"at": next(hosts), "python": path}
            lab.hog(rows[f"py{version}"]["at"], "retitled", 0, 3000)
        rows |= _searching(lab, next(hosts), next(hosts))
        shells = next(hosts)
        rows |= _shells(lab, shells)
        desk = Desk(folder, folder / "none").with_inventory(inventory(lab, rows))
        names = "@all,!py*" if not FOUND else "py*"
        said = desk.run("reclaim", "-H", names, "--dry-run", "-o", "json")
        yield Place(lab, desk, said)


def _searching(lab: api.Lab, old: str, both: str) -> dict[str, dict[str, Any]]:
    """Hosts whose python3 is too old: alone, and with a newer one beside it."""
    rows: dict[str, dict[str, Any]] = {}
    ancient = next((FOUND[v] for v in FOUND if key(v) < OLDEST), None)
    modern = next((FOUND[v] for v in FOUND if key(v) >= OLDEST and v != "3.11"), None)
    if ancient is None or modern is None:
        return rows
    for name, host in (("only-old", old), ("old-and-new", both)):
        no_python(lab, host, Path())
        inside(lab, host, f"ln -s {ancient} /usr/bin/python3")
        rows[name] = {"at": host}
    version = Path(modern).name
    inside(lab, both, f"ln -s {modern} /usr/local/bin/{version}")
    return rows


def _shells(lab: api.Lab, host: str) -> dict[str, dict[str, Any]]:
    """A user for each login shell of this machine, with a noisy start-up file."""
    etc = lab.directory / host / "etc"
    rows: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(SHELLS_HERE, 1200):
        path = shutil.which(name, path="/bin:/usr/bin")
        user = f"user-{name}"
        with (etc / "passwd").open("a") as file:
            file.write(f"{user}:x:{number}:{number}::/home/{user}:{path}\n")
        with (etc / "group").open("a") as file:
            file.write(f"{user}:x:{number}:\n")
        with (etc / "shadow").open("a") as file:
            file.write(f"{user}:*:19000:0:99999:7:::\n")
        with (etc / "sudoers").open("a") as file:
            file.write(f"{user} ALL=(ALL:ALL) NOPASSWD: ALL\n")
        home = f"/home/{user}"
        inside(
            lab,
            host,
            f"install -d -m 700 {home} {home}/.config {home}/.config/fish; for f in .bashrc "
            f".zshenv .cshrc .config/fish/config.fish; do echo 'echo \"{{ [ noise\"' "
            f">{home}/$f; done; chown -R {number}:{number} {home}",
        )
        rows[user] = {"at": host, "user": user}
        rows[f"sudo-{name}"] = {"at": host, "user": user, "sudo": True}
    return rows


def test_what_is_here(record_property: Callable[[str, object], None]) -> None:
    """The premise: some interpreter that the agent runs on, and every shell."""
    record_property("not_tested", pythons.not_tested("hosts with"))
    assert any(key(version) >= OLDEST for version in FOUND)
    assert SHELLS_HERE == SHELLS


@pytest.mark.parametrize("version", FOUND)
def test_each_python_reads_a_host_alike(place: Place, version: str) -> None:
    entry = place.said.answer.host(f"py{version}")
    if key(version) < OLDEST:
        assert entry["outcome"] == "failed"
        assert entry["error"]["code"] == "python_too_old"
        assert f"is {version}." in entry["error"]["message"]
        return
    assert (entry["outcome"], entry["error"]) == ("ok", None)
    facts = entry["readings"]["host.facts"]["reading"]
    assert facts["python"].startswith(f"{version}.")
    assert len(entry["reclaim"]["targets"]) == 1
    readings = {name: row["outcome"] for name, row in entry["readings"].items()}
    assert set(readings.values()) == {"ok"}, readings


def test_each_python_gives_memory_back_and_keeps_its_own_cache(place: Place) -> None:
    names = ",".join(f"py{version}" for version in FOUND if key(version) >= OLDEST)
    answer = place.desk.reclaim(names)
    assert answer.code == 0
    for name in names.split(","):
        assert answer.reclaim(name)["verdict"] == "reclaimed"
        assert [row["signal"] for row in answer.reclaim(name)["rungs"][1]["signalled"]] == ["TERM"]


def test_a_newer_python_beside_an_old_one_is_found(place: Place) -> None:
    known = {
        row["host"]
        for row in place.desk.run("hosts", "-H", "@all", "-o", "json").answer.envelope["hosts"]
    }
    if "only-old" not in known:
        assert not any(key(v) < OLDEST for v in FOUND)  # nothing old here to be passed over
        return
    said = place.desk.run("hosts", "--check", "-H", "only-old,old-and-new", "-o", "json")
    error = said.answer.host("only-old")["error"]
    assert error["code"] == "python_too_old"
    assert "needs 3.8" in error["message"]
    assert said.answer.host("old-and-new")["outcome"] == "ok"


@pytest.fixture(scope="module")
def shells(place: Place) -> Said:
    users = ",".join(f"user-{name},sudo-{name}" for name in SHELLS_HERE)
    return place.desk.run("hosts", "--check", "-H", users, "-o", "json")


@pytest.mark.parametrize("name", SHELLS)
def test_every_login_shell_starts_the_agent(shells: Said, name: str) -> None:
    for prefix, root in (("user", False), ("sudo", True)):
        entry = shells.answer.host(f"{prefix}-{name}")
        assert entry["error"] is None
        assert (entry["readings"]["host.facts"]["reading"]["uid"] == 0) is root


def test_a_python_that_is_named_and_not_there(place: Place, tmp_path: Path) -> None:
    host = next(iter(place.lab.hosts))
    broken = script(place.lab, host, "broken-python", "#!/bin/sh\necho cannot start >&2\nexit 3\n")
    rows = {
        "absent": {"at": host, "python": "/opt/none/bin/python3"},
        "broken": {"at": host, "python": broken},
        "good": {"at": host},
    }
    desk = place.desk.with_inventory(inventory(place.lab, rows), "named.yaml")
    said = desk.run("hosts", "--check", "-H", "@all", "-o", "json")
    absent, failed = (said.answer.host(name)["error"] for name in ("absent", "broken"))
    assert absent["code"] == "python_missing"
    assert "/opt/none/bin/python3" in absent["message"]
    assert failed["code"] == "agent_failed"
    assert "cannot start" in failed["message"]
    assert said.answer.host("good")["error"] is None


def test_interpreters_are_what_they_are_called() -> None:
    for version, path in FOUND.items():
        told = subprocess.run([path, "-V"], capture_output=True, text=True, check=True).stdout
        assert told.startswith(f"Python {version}.")
