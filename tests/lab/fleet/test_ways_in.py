"""Every way in: addresses, host files, selectors, ssh's own files, jump hosts, busy servers."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fleetmem.controller.record.history import open_history
from tests.lab import api
from tests.lab.bad_days import keygen, sign
from tests.lab.desk import Desk, Said, inside, inventory, known_hosts, second_sshd

pytestmark = pytest.mark.lab

PORT = 2400


@dataclass(frozen=True)
class Place:
    """Hosts and a desk whose inventory knows the first three."""

    lab: api.Lab
    desk: Desk
    folder: Path

    def known(self, name: str, **settings: Any) -> dict[str, Any]:
        """A host on the second sshd of the first lab host."""
        path = self.folder / "known-second"
        path.write_text(known_hosts(self.lab, "gh200-01", PORT))
        return {"at": "gh200-01", "port": PORT, "known_hosts": str(path), **settings}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("desk")
    with api.lab(n=6) as lab:
        rows: dict[str, dict[str, Any]] = {host: {} for host in list(lab.hosts)[:4]}
        desk = Desk(folder, folder / "none").with_inventory(
            {**inventory(lab, rows), "groups": {"odd": {"hosts": "gh200-[01,03]"}}}
        )
        second_sshd(lab, "gh200-01", PORT, "MaxStartups 2:100:3")
        yield Place(lab, desk, folder)


def names(said: Said) -> list[str]:
    return [row["host"] for row in said.answer.envelope["hosts"]]


# --- mistakes at the desk --------------------------------------------------------------------

BAD_YAML = """\
defaults: {user: root, prot: 22}
groups:
  a: {hosts: "gh200-[01-"}
hosts:
  gh200-01: {port: many}
  gh200-02: {address: "a b", sudo: perhaps}
"""


def usage(desk: Desk, *words: str) -> dict[str, Any]:
    said = desk.run(*words, "-o", "json")
    assert said.code == 2
    assert said.err.count("hint: ") == 1
    return said.error


def test_every_mistake_of_an_inventory_is_told_at_once(place: Place) -> None:
    path = place.folder / "bad.yaml"
    path.write_text(BAD_YAML)
    error = usage(place.desk, "reclaim", "-i", str(path), "-H", "@all", "--dry-run")
    assert error["code"] == "inventory_invalid"
    lines = error["message"].splitlines()
    assert {line.split(": ")[0].rpartition(":")[0] for line in lines} == {
        f"{path}:{number}" for number in (1, 3, 5, 6)
    }
    assert len(lines) == 5, lines
    path.write_text("hosts: [\n")
    assert usage(place.desk, "hosts", "-i", str(path))["message"].startswith(f"{path}:")


@pytest.mark.parametrize(
    ("hosts", "code", "words"),
    [
        ("gh100-*", "no_hosts_match", "gh100-*"),
        ("gh200-99", "no_hosts_match", "gh200-99"),
        ("@even", "no_hosts_match", "@even"),
        ("gh200-01,!gh200-01", "no_hosts_match", "leaves no host"),
        ("gh200-[1-100000000]", "range_too_large", "100000000"),
        ("root@h[1-10000]-[1-10000]", "range_too_large", "100000000"),
        ("gh200-[9-1]", "usage_error", "backwards"),
        ("@run:zzzz:failed", "usage_error", "zzzz"),
        ("@file:/nowhere", "inventory_invalid", "/nowhere"),
        ("root@h:99999", "usage_error", "99999"),
    ],
)
def test_a_selector_that_means_nothing(place: Place, hosts: str, code: str, words: str) -> None:
    error = usage(place.desk, "reclaim", "-H", hosts, "--dry-run")
    assert error["code"] == code
    assert words in error["message"]
    assert "\n" not in error["message"]


def test_a_plan_of_nowhere(place: Place) -> None:
    garbage = place.folder / "garbage.json"
    garbage.write_text("{")
    for plan, words in (("zzzz", "zzzz"), ("/nowhere.json", "/nowhere"), (str(garbage), "JSON")):
        error = usage(place.desk, "reclaim", "--apply", plan, "--yes")
        assert error["code"] == "plan_invalid"
        assert words in error["message"]


# --- selectors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-H", "gh200-[01-04]"), "1234"),
        (("-H", "gh200-*", "-x", "gh200-02"), "134"),
        (("-H", "gh200-[01-03],&@odd"), "13"),
        (("-H", "@all,!@odd"), "24"),
        (("-H", "!gh200-04"), "123"),
        (("-H", "gh200-*,&gh200-[02-04],!gh200-03", "-x", "gh200-04"), "2"),
        (("-H", "gh200-04,gh200-01,gh200-04"), "41"),
    ],
)
def test_the_algebra_of_sets(place: Place, words: tuple[str, ...], expected: str) -> None:
    said = place.desk.run("hosts", *words, "-o", "json")
    found = names(said)
    if "*" not in words[1] and words[1][0] not in "@!":  # those have the inventory's order
        assert found == [f"gh200-0{digit}" for digit in expected]
    assert sorted(found) == sorted(f"gh200-0{digit}" for digit in expected)


def test_a_host_file_is_a_set_and_its_mistakes_have_lines(place: Place) -> None:
    path = place.folder / "hosts.txt"
    path.write_text("# racks\ngh200-[01-02]\n\n@odd  # and these\n")
    assert names(place.desk.run("hosts", "-H", f"@file:{path}", "-o", "json")) == [
        "gh200-01",
        "gh200-02",
        "gh200-03",
    ]
    path.write_text("gh200-01\ngh300-01\n!gh200-02\n")
    error = usage(place.desk, "hosts", "-H", f"@file:{path}")
    assert [line.split(": ")[0] for line in error["message"].splitlines()] == [
        f"{path}:2:1",
        f"{path}:3:1",
    ]


def test_user_host_and_port_without_an_inventory(place: Place) -> None:
    at = place.lab.hosts["gh200-05"]
    ssh = place.folder / "home/.ssh"
    ssh.mkdir(parents=True, exist_ok=True, mode=0o700)
    shutil.copy(place.lab.directory / "id_ed25519", ssh)
    written = f"root@{at.address}:{at.port}"
    bare = Desk(place.folder, place.folder / "absent")
    words = ("--check", "-i", os.devnull, "-H", written, "-o", "json")
    unknown = bare.run("hosts", *words)
    assert unknown.answer.host(written)["error"]["code"] == "hostkey_unknown"
    assert unknown.code == 4
    assert not (ssh / "known_hosts").exists()
    accepted = bare.run("hosts", *words, "--accept-new-host-key")
    assert accepted.code == 0
    said = f"warning: {written}: accepted host key ED25519 SHA256:"
    assert said in accepted.err
    assert str(ssh / "known_hosts") in accepted.err
    history = open_history(directory=place.folder / "state/fleetmem")
    (event,) = history.trail_of("host_keys")
    history.close()
    assert (event["host"], event["action"]) == (written, "accept_host_key")
    assert event["fingerprint"] in accepted.err
    again = bare.run("hosts", *words, "--accept-new-host-key")
    assert (again.code, again.err) == (0, "")
    hashed = ["ssh-keygen", "-q", "-H", "-f", str(ssh / "known_hosts")]
    subprocess.run(hashed, check=True, capture_output=True)
    assert at.address not in (ssh / "known_hosts").read_text()
    assert bare.run("hosts", *words).code == 0


# --- certificates, ssh_config, jump hosts ----------------------------------------------------


def test_certificates_on_both_sides(place: Place, tmp_path: Path) -> None:
    users, hosts = keygen(tmp_path / "users_ca"), keygen(tmp_path / "hosts_ca")
    key = keygen(tmp_path / "me")
    sign(users, tmp_path / "me.pub", "-n", "root", "-V", "-1h:+1h")
    home = place.lab.directory / "gh200-05"
    shutil.copy(tmp_path / "users_ca.pub", home / "users_ca.pub")
    shutil.copy(home / "ssh_host_ed25519_key.pub", home / "signed.pub")
    sign(hosts, home / "signed.pub", "-h", "-n", "certified", "-V", "-1h:+1h")
    second_sshd(
        place.lab,
        "gh200-05",
        PORT + 1,
        "TrustedUserCAKeys /run/host/users_ca.pub\n"
        "HostCertificate /run/host/signed-cert.pub\nAuthorizedKeysFile none",
    )
    trust = tmp_path / "known_hosts"
    trust.write_text("@cert-authority certified " + (tmp_path / "hosts_ca.pub").read_text())
    row = {
        "at": "gh200-05",
        "port": PORT + 1,
        "identity": str(key),
        "known_hosts": str(trust),
    }
    # a certificate for another name never becomes trust on first contact
    every = tmp_path / "every"
    every.write_text("@cert-authority * " + (tmp_path / "hosts_ca.pub").read_text())
    rows = {"certified": row, "otherwise": {**row, "known_hosts": str(every)}}
    desk = place.desk.with_inventory(inventory(place.lab, rows), "certificates.yaml")
    for words in ((), ("--accept-new-host-key",)):
        said = desk.run("hosts", "--check", "-H", "@all", "-o", "json", *words)
        assert said.answer.host("certified")["outcome"] == "ok"
        error = said.answer.host("otherwise")["error"]
        assert error["code"] == "hostcert_invalid", error
        assert every.read_text().count("\n") == 1


SSH_CONFIG = """\
Host first
  HostName {first.address}
  Port {first.port}
Host second
  HostName {second.address}
  Port {second.port}
  ProxyJump first
Host far
  HostName {far.address}
  Port {far.port}
  ProxyJump second
Host *
  User root
  IdentityFile {key}
  IdentitiesOnly yes
  UserKnownHostsFile {known}
"""


def test_ssh_config_leads_over_two_hops(place: Place) -> None:
    lab = place.lab
    ssh = place.folder / "configured/home/.ssh"
    ssh.mkdir(parents=True, mode=0o700)
    first, second, far = (lab.hosts[f"gh200-0{n}"] for n in (2, 3, 6))
    text = SSH_CONFIG.format(
        first=first,
        second=second,
        far=far,
        key=lab.directory / "id_ed25519",
        known=lab.directory / "known_hosts",
    )
    (ssh / "config").write_text(text)
    desk = Desk(place.folder / "configured", place.folder / "absent").with_inventory(
        {"hosts": {"far": {}, "second": {}}}
    )
    said = desk.run("hosts", "--check", "-H", "far", "-o", "json")
    assert said.answer.host("far")["outcome"] == "ok", said.out
    came_from = inside(lab, "gh200-06", "cat /run/host/sshd.log || true")
    assert "error" not in came_from


Breaks = Callable[[Place], dict[str, Any]]


def _dead(_place: Place) -> dict[str, Any]:
    return {"port": 1}


def _stranger(place: Place) -> dict[str, Any]:
    return {"identity": str(keygen(place.folder / f"hop-{len(os.listdir(place.folder))}"))}


def _unknown(_place: Place) -> dict[str, Any]:
    return {"known_hosts": os.devnull}


@pytest.mark.parametrize("broken", [0, 1])
@pytest.mark.parametrize(
    ("breaks", "code"),
    [
        (_dead, "gateway_unreachable"),
        (_stranger, "auth_failed"),
        (_unknown, "hostkey_unknown"),
    ],
)
def test_the_hop_that_fails_is_named(place: Place, breaks: Breaks, code: str, broken: int) -> None:
    rows: dict[str, dict[str, Any]] = {
        "hop-a": {"at": "gh200-02"},
        "hop-b": {"at": "gh200-03"},
        "far-1": {"at": "gh200-05", "jump": ["hop-a", "hop-b"]},
        "far-2": {"at": "gh200-06", "jump": ["hop-a", "hop-b"]},
        "near": {"at": "gh200-04"},
        "side": {"at": "gh200-06", "jump": ["gate"]},
        "gate": {"at": "gh200-01"},
    }
    hop = ("hop-a", "hop-b")[broken]
    rows[hop] |= breaks(place)
    desk = place.desk.with_inventory(inventory(place.lab, rows), "hops.yaml")
    said = desk.run("hosts", "--check", "-H", "far-[1-2],near,side", "-o", "json")
    for name in ("far-1", "far-2"):
        error = said.answer.host(name)["error"]
        assert error["code"] == code
        assert error["message"].startswith(f"{name}: hop {hop}: "), error
    for name in ("near", "side"):
        assert said.answer.host(name)["outcome"] == "ok"
    assert said.code == 3


def test_a_hop_that_does_not_forward(place: Place) -> None:
    second_sshd(place.lab, "gh200-04", PORT + 2, "AllowTcpForwarding no")
    trust = place.folder / "known-closed"
    trust.write_text(known_hosts(place.lab, "gh200-04", PORT + 2))
    rows = {
        "gate": {"at": "gh200-04", "port": PORT + 2, "known_hosts": str(trust)},
        "behind": {"at": "gh200-06", "jump": ["gate"]},
        "dead": {"at": "gh200-06", "port": 1, "jump": ["open"]},
        "open": {"at": "gh200-03"},
    }
    desk = place.desk.with_inventory(inventory(place.lab, rows), "closed.yaml")
    answer = desk.run("hosts", "--check", "-H", "behind,dead", "-o", "json").answer
    assert answer.code == 4
    assert answer.host("behind")["error"]["code"] == "gateway_unreachable"
    assert "hop gate" in answer.host("behind")["error"]["message"]
    assert answer.host("dead")["error"]["code"] == "connect_refused"
    assert "hop open" in answer.host("dead")["error"]["message"]


# --- many at once ----------------------------------------------------------------------------


def test_a_server_that_drops_connections_gets_them_one_by_one(place: Place) -> None:
    rows = {f"alias-{n:02}": place.known(f"alias-{n:02}") for n in range(1, 21)}
    desk = place.desk.with_inventory(inventory(place.lab, rows), "aliases.yaml")
    said = desk.run("hosts", "--check", "-H", "@all", "-o", "json", "--timeout", "5m")
    errors = [row["error"] for row in said.answer.envelope["hosts"] if row["error"]]
    assert errors == []
    assert said.answer.envelope["summary"]["ok"] == 20
    assert said.code == 0


def test_few_open_files_for_many_hosts(place: Place) -> None:
    hosts = list(place.lab.hosts)
    rows = {f"h{n:03}": {"at": hosts[n % len(hosts)]} for n in range(300)}
    desk = place.desk.with_inventory(inventory(place.lab, rows), "many.yaml")
    said = desk.run(
        *("hosts", "--check", "-H", "@all", "-o", "json", "--fanout", "300", "--timeout", "10m"),
        timeout=1500,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)),
    )
    entries = said.answer.envelope["hosts"]
    assert [row["error"] for row in entries if row["error"]] == []
    assert len(entries) == 300
    # on a busy machine a reading may be late; then the host says so, and is no failure
    late = [row["readings"] for row in entries if row["outcome"] != "ok"]
    assert all("timed_out" in [one["outcome"] for one in row.values()] for row in late), late
    warnings = [line for line in said.err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert re.match(r"warning: fanout lowered from 300 to \d+: only 256 files", warnings[0])
    assert said.code == 0


def test_links_kept_for_applying_are_never_more_than_the_fanout(place: Place) -> None:
    """Plans on more hosts than the fan-out allows open at once; all are applied."""
    hosts = list(place.lab.hosts)
    for host in hosts:
        place.lab.hog(host, "retitled", 0, 1000)
    desk = place.desk.with_inventory(inventory(place.lab, {h: {} for h in hosts}), "all.yaml")
    answer = desk.reclaim("@all", "--fanout", "2")
    assert answer.code == 0
    assert {answer.reclaim(host)["verdict"] for host in hosts} == {"reclaimed"}
    assert all(len(answer.signalled(host)) >= 1 for host in hosts)


def test_a_name_that_is_not_answered_does_not_hold_the_program(place: Place) -> None:
    """Work that was given up must not keep the process alive at the end."""
    rows: dict[str, dict[str, Any]] = {"good": {"at": "gh200-02"}}
    rows["late"] = {"at": "gh200-03", "python": "/run/host/late"}
    late = place.lab.directory / "gh200-03/late"
    late.write_text("#!/bin/sh\ntrap '' TERM HUP INT\nkill -STOP $PPID\nsleep 600\n")
    late.chmod(0o755)
    desk = place.desk.with_inventory(inventory(place.lab, rows), "late.yaml")
    said = desk.run("hosts", "--check", "-H", "@all", "-o", "json", "--timeout", "15s", timeout=200)
    assert said.answer.host("late")["outcome"] == "timed_out"
    assert "starting the agent" in said.answer.host("late")["error"]["message"]
    assert said.answer.host("good")["outcome"] == "ok"
    assert json.loads(said.out)["run"]["exit_code"] == 3
