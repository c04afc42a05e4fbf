"""Keys and certificates to log in with, read once for all connections of a run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncssh

from fleetmem.controller.errors import IdentityInvalid

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULTS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_USER_CERTIFICATE = 1


@dataclass(frozen=True)
class SshKey:
    """What one identity file gives: a key with perhaps a certificate, or, where the key is
    locked by a passphrase, the public halves that ssh-agent may sign for."""

    path: str
    key: asyncssh.SSHKey | None
    certificate: asyncssh.SSHCertificate | None
    public: tuple[bytes, ...]


@dataclass(frozen=True)
class Login:
    """What asyncssh gets: ``keys`` to offer, and which of the agent's (None: all)."""

    keys: tuple[Any, ...]
    agent_path: str | None
    agent_identities: tuple[bytes, ...] | None
    identities: tuple[SshKey, ...]

    def complaint(self, user: str) -> str:
        """What is wrong with a certificate among the keys, as far as it can be seen here."""
        for identity in self.identities:
            if identity.certificate is not None:
                try:
                    identity.certificate.validate(_USER_CERTIFICATE, user)  # type: ignore[attr-defined]
                except ValueError as error:
                    return f"{identity.path}-cert.pub: {str(error).lower()}"
        return ""


def login(paths: Sequence[str], only: bool, who: str, cache: dict[str, Any]) -> Login:
    """The login for the identity files *paths*, for ssh's defaults where there are none.

    With *only* nothing but those is offered, through the agent where a passphrase locks one;
    else all the agent's keys come first. IdentityInvalid where a file is no use.
    """
    agent = os.environ.get("SSH_AUTH_SOCK") or None
    read = [_cached(path, cache) for path in paths or DEFAULTS]
    problems = [one for one in read if isinstance(one, str)] if paths else []
    if problems:
        raise IdentityInvalid(f"{who}: {'; '.join(problems)}")
    identities = tuple(one for one in read if isinstance(one, SshKey))
    if not only:
        return Login(_offers(identities), agent, None, identities)
    public = tuple(data for one in identities for data in one.public)
    locked = [one.path for one in identities if one.key is None]
    if locked and (agent is None or not public):
        raise IdentityInvalid(f"{who}: {locked[0]} is locked by a passphrase")
    return Login(_offers(identities), agent if locked else None, public or None, identities)


def _offers(identities: tuple[SshKey, ...]) -> tuple[Any, ...]:
    """Each key with its certificate first, then bare, as ssh offers them."""
    return tuple(
        offer
        for one in identities
        if one.key is not None
        for offer in (((one.key, one.certificate),) if one.certificate else (one.key,))
    )


def _cached(path: str, cache: dict[str, Any]) -> SshKey | str:
    path = os.path.expanduser(path)
    if path not in cache:
        cache[path] = _read(path)
    found: SshKey | str = cache[path]
    return found


def _read(path: str) -> SshKey | str:
    """The identity in the file at *path*, or what is wrong with it."""
    certificate = _certificate(path + "-cert.pub")
    try:
        key = asyncssh.read_private_key(path)
    except asyncssh.KeyEncryptionError:
        return SshKey(path, None, certificate, _public(path, certificate))
    except asyncssh.KeyImportError as error:
        public = _public_file(path)
        if public:
            return SshKey(path, None, certificate, public)
        return f"{path}: {_locked_or(str(error))}"
    except OSError as error:
        return f"{path}: {(error.strerror or str(error)).lower()}"
    return SshKey(path, key, certificate, ())


def _locked_or(text: str) -> str:
    return "locked by a passphrase" if "assphrase" in text else text.lower()


def _certificate(path: str) -> asyncssh.SSHCertificate | None:
    try:
        return asyncssh.read_certificate(path)
    except (OSError, asyncssh.KeyImportError):
        return None


def _public(path: str, certificate: asyncssh.SSHCertificate | None) -> tuple[bytes, ...]:
    found = [certificate.public_data] if certificate is not None else []
    return (*found, *_public_file(path + ".pub"))


def _public_file(path: str) -> tuple[bytes, ...]:
    try:
        return (asyncssh.read_public_key(path).public_data,)
    except (OSError, asyncssh.KeyImportError):
        return ()
