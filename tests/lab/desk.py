"""A desk in front of a lab: the command line with a home and a state of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.lab import api
from tests.lab.reclaim_stage import Answer

PROGRAM = Path(sys.executable).parent / "fleetmem"
OUTCOMES = ("ok", "partial", "failed", "unreachable", "timed_out", "not_attempted", "unknown")


def unbroken(text: str) -> str:
    """A screen whose long commands, broken with a backslash, are one line again, as a shell that
    they are pasted into reads them."""
    return re.sub(r" \\\n +", " ", text)


@dataclass(frozen=True)
class Said:
    """What one call of the program said, and its status."""

    code: int
    out: str
    err: str

    @property
    def answer(self) -> Answer:
        """The envelope on stdout, with its sums checked."""
        envelope = json.loads(self.out)
        assert envelope["run"]["exit_code"] == self.code
        summary = envelope["summary"]
        names = [row["host"] for row in envelope["hosts"]]
        if "error" not in envelope:
            assert names == envelope["targeted"]
        assert len(set(names)) == len(names) == summary["targeted"]
        assert sum(summary[word] for word in OUTCOMES) == summary["targeted"]
        return Answer(self.code, envelope, self.err)

    @property
    def error(self) -> dict[str, Any]:
        """The error that ended the run before any host was tried: one line each, a hint."""
        envelope = json.loads(self.out)
        assert (envelope["hosts"], envelope["run"]["exit_code"]) == ([], self.code)
        error: dict[str, Any] = envelope["error"]
        for line in error["message"].splitlines():
            assert f"fleetmem: {line}" in self.err.splitlines()
        return error


@dataclass(frozen=True)
class Desk:
    """Where somebody sits: home, state and inventory lie below ``folder``."""

    folder: Path
    inventory: Path
    more: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the program: nothing of ours but the path."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder / "home"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "LANG": "C.UTF-8",
            "COLUMNS": "120",
            **self.more,
        }

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """The program in the background, in a session of its own."""
        (self.folder / "home").mkdir(parents=True, exist_ok=True)
        command, *rest = words
        given = [] if {"-i", "--inventory"} & {*rest} else ["-i", str(self.inventory)]
        return subprocess.Popen(
            [str(PROGRAM), command, *given, *rest],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=self.environment,
            cwd=self.folder / "home",
            **{"stdin": subprocess.DEVNULL, **options},
        )

    def run(self, *words: str, timeout: float = 400, **options: Any) -> Said:
        """Run it to its end; never a traceback."""
        with self.running(*words, **options) as started:
            out, err = started.communicate(timeout=timeout)
        assert "Traceback" not in err, err
        return Said(started.returncode, out, err)

    @contextlib.contextmanager
    def running(self, *words: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
        """The program while the block runs."""
        started = self.start(*words, **options)
        try:
            yield started
        finally:
            started.kill()
            started.communicate()

    def plan(self, hosts: str, *words: str, **options: Any) -> Answer:
        """``reclaim --dry-run -o json``."""
        return self.run("reclaim", "-H", hosts, "--dry-run", "-o", "json", *words, **options).answer

    def reclaim(self, hosts: str, *words: str, **options: Any) -> Answer:
        """``reclaim --yes -o json`` with a short grace period."""
        fixed = ("--yes", "--grace-period", "1s", "-o", "json")
        return self.run("reclaim", "-H", hosts, *fixed, *words, **options).answer

    def with_inventory(self, document: Mapping[str, Any], name: str = "own.yaml") -> Desk:
        """The same desk with another inventory."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(dict(document), sort_keys=False))
        return Desk(self.folder, path, self.more)


def inventory(lab: api.Lab, hosts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """An inventory in which each name is a host of the lab (``at``, default the same name)
    with settings of its own."""
    rows = {}
    for name, settings in hosts.items():
        row = dict(settings)
        at = lab.hosts.get(str(row.pop("at", name)))
        rows[name] = {**({"address": at.address, "port": at.port} if at else {}), **row}
    defaults = {
        "user": "root",
        "identity": str(lab.directory / "id_ed25519"),
        "known_hosts": str(lab.directory / "known_hosts"),
    }
    return {"defaults": defaults, "hosts": rows}


def second_sshd(lab: api.Lab, host: str, port: int, lines: str) -> None:
    """Another sshd of the host on *port*; *lines* come first in its configuration."""
    own = lab.directory / host
    text = (own / "sshd_config").read_text()
    kept = [
        line
        for line in text.splitlines()
        if line.split()[0] not in ("ListenAddress", *(row.split()[0] for row in lines.splitlines()))
    ]
    listen = f"ListenAddress {lab.hosts[host].address}:{port}"
    (own / f"sshd_{port}").write_text("\n".join([listen, lines, *kept]) + "\n")
    started = lab.exec(host, "/usr/sbin/sshd", "-f", f"/run/host/sshd_{port}")
    assert started.returncode == 0, started.stderr


def known_hosts(lab: api.Lab, host: str, port: int) -> str:
    """The line that known_hosts needs for another port of a host."""
    public = (lab.directory / host / "ssh_host_ed25519_key.pub").read_text().split()
    return f"[{lab.hosts[host].address}]:{port} {public[0]} {public[1]}\n"


def script(lab: api.Lab, host: str, name: str, text: str) -> str:
    """An executable file of the host; its path there."""
    path = lab.directory / host / name
    path.write_text(text)
    path.chmod(0o755)
    return f"/run/host/{name}"


def inside(lab: api.Lab, host: str, text: str) -> str:
    """Run shell *text* as root in a host; what it printed. Fails where it fails."""
    done = lab.exec(host, "sh", "-ec", text)
    assert done.returncode == 0, (host, text, done.stderr)
    return done.stdout
