"""Host keys: what known_hosts files say about an address. Always strict."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import asyncssh

from fleetmem.controller.answer.step import DIRECT, Reach, complete, next_step
from fleetmem.controller.errors import HostkeyChanged, HostkeyRevoked, HostkeyUnknown

if TYPE_CHECKING:
    from collections.abc import Iterable

DEFAULT_FILES = (
    "~/.ssh/known_hosts",
    "~/.ssh/known_hosts2",
    "/etc/ssh/ssh_known_hosts",
    "/etc/ssh/ssh_known_hosts2",
)
_PLAIN = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)
_CERTIFICATES = tuple(f"{name}-cert-v01@openssh.com" for name in _PLAIN)
_SIGNED_BY = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}


@dataclass(frozen=True)
class Trust:
    """The keys that the files list for one address; ``patterns`` are the spellings that matched."""

    keys: tuple[asyncssh.SSHKey, ...]
    authorities: tuple[asyncssh.SSHKey, ...]
    revoked: tuple[asyncssh.SSHKey, ...]
    patterns: tuple[str, ...]

    def for_asyncssh(self) -> tuple[list[asyncssh.SSHKey], ...]:
        """(trusted, authorities, revoked), never None: None would turn the check off."""
        return list(self.keys), list(self.authorities), list(self.revoked)

    def algorithms(self) -> list[str]:
        """Host key algorithms to ask for: certificates only where an authority is trusted,
        then the types that are known, then the rest, so that another type is seen as changed."""
        known = [
            name
            for key in self.keys
            for name in _SIGNED_BY.get(key.get_algorithm(), (key.get_algorithm(),))
            if name in _PLAIN
        ]
        wanted = [*(_CERTIFICATES if self.authorities else ()), *known, *_PLAIN]
        return list(dict.fromkeys(wanted))


@dataclass
class KnownHosts:
    """Some known_hosts files, parsed once for all connections of a run."""

    files: tuple[str, ...]
    parsed: asyncssh.SSHKnownHosts = field(default_factory=asyncssh.SSHKnownHosts)

    def lookup(self, names: Iterable[str], address: str, port: int) -> Trust:
        """What is known of a host that goes by *names* and answers at *address* and *port*.

        Another port than 22 is looked up as ``[name]:port`` first, then plain, as ssh does.
        """
        merged: list[list[asyncssh.SSHKey]] = [[], [], []]
        patterns: list[str] = []
        ip = address if _is_ip(address) else ""
        for name in dict.fromkeys(names):
            plain = self.parsed.match(name, ip, None)[:3]
            found = plain if port == 22 else self.parsed.match(name, ip, port)[:3]
            if found[0] or found[1]:
                patterns.append(spelling(name, 22 if found[:2] == plain[:2] else port))
            for into, keys in zip(merged, found, strict=True):
                into.extend(key for key in keys if key not in into)
            merged[2].extend(key for key in plain[2] if key not in merged[2])
        return Trust(tuple(merged[0]), tuple(merged[1]), tuple(merged[2]), tuple(patterns))

    def accept(self, name: str, port: int, key: asyncssh.SSHKey) -> str:
        """Append *key* for *name* to the first file and give that file's path; OSError."""
        path = os.path.expanduser(self.files[0])
        known = self.lookup([name], "", port)
        if key in known.keys:
            return path
        exported = key.export_public_key("openssh").decode("ascii").split()
        line = f"{spelling(name, port)} {exported[0]} {exported[1]}\n"
        os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            broken = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            os.write(descriptor, ("\n" if broken else "").encode() + line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.parsed.load(line)
        return path


def load(files: tuple[str, ...]) -> KnownHosts:
    """The keys in *files*; missing files and lines that cannot be read are passed over."""
    known = KnownHosts(files)
    for path in files:
        try:
            with open(os.path.expanduser(path), "rb") as file:
                text = file.read().decode("utf-8", "replace")
        except OSError:
            continue
        try:
            asyncssh.SSHKnownHosts(text)
        except ValueError:
            lines = text.splitlines()
        else:
            known.parsed.load(text)
            continue
        for line in lines:
            try:
                known.parsed.load(line)
            except ValueError:
                continue
    return known


def spelling(name: str, port: int) -> str:
    """How known_hosts spells an address: ``name``, or ``[name]:port`` for another port."""
    return name if port == 22 else f"[{name}]:{port}"


def fingerprint(key: asyncssh.SSHKey) -> str:
    """``ED25519 SHA256:…`` as ssh prints it."""
    kind = key.get_algorithm().removeprefix("ssh-").split("-")[0].upper()
    return f"{kind} {key.get_fingerprint('sha256')}"


def refusal(
    who: str,
    name: str,
    port: int,
    key: asyncssh.SSHKey,
    trust: Trust,
    known: KnownHosts,
    reach: Reach = DIRECT,
) -> HostkeyUnknown | HostkeyChanged | HostkeyRevoked:
    """The error for *key*, shown by *who* and not trusted: revoked, changed or unknown."""
    at = spelling(name, port)
    shown = fingerprint(key)
    if key in trust.revoked:
        return HostkeyRevoked(f"{who}: the host key of {at}, {shown}, is revoked")
    path = os.path.expanduser(known.files[0])
    accept = complete(next_step("hosts", who, check=True, accept_new_host_key=True), reach)
    if trust.keys:
        was = ", ".join(fingerprint(one) for one in trust.keys)
        removals = " && ".join(f"ssh-keygen -R '{one}' -f '{path}'" for one in trust.patterns)
        return HostkeyChanged(
            f"{who}: the host key of {at} has changed: it now presents {shown}, "
            f"known_hosts has {was}",
            f"if the host was reinstalled: {removals} && {accept}",
        )
    return HostkeyUnknown(
        f"{who}: the host key of {at} is not known: {shown}",
        f"if the fingerprint is right: {accept}",
    )


def _is_ip(text: str) -> bool:
    from ipaddress import ip_address

    try:
        ip_address(text)
    except ValueError:
        return False
    return True
