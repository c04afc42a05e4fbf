"""Errors of hosts that could not be reached."""

from __future__ import annotations

from fleetmem.controller.errors.base import EXIT_NONE_REACHED, FleetError


class Unreachable(FleetError):
    """The host was not reached."""

    code = "unreachable"
    exit_code = EXIT_NONE_REACHED
    outcome = "unreachable"


class DnsFailed(Unreachable):
    """The host's name has no address."""

    code = "dns_failed"
    remedy = "check the spelling, or give the host an address in the inventory"


class ConnectTimeout(Unreachable):
    """Nothing answered, or no SSH server spoke, within the connect timeout."""

    code = "connect_timeout"
    remedy = "check that the host is up and its port open, or raise connect_timeout"


class ConnectRefused(Unreachable):
    """The host answers, but nothing listens on that port."""

    code = "connect_refused"
    remedy = "check the port and that sshd runs"


class ConnectFailed(Unreachable):
    """The network dropped the connection: no route, reset, or closed during the handshake."""

    code = "connect_failed"
    remedy = "check the route to the host and sshd's MaxStartups"


class GatewayUnreachable(Unreachable):
    """A jump host was not reached or refused to forward; the message names the hop."""

    code = "gateway_unreachable"
    remedy = "check the hop that the message names"


class SshProtocol(Unreachable):
    """The two sides could not agree on an SSH protocol."""

    code = "ssh_protocol"
    remedy = "check that the port belongs to an SSH server, and its algorithms"


class HostkeyUnknown(Unreachable):
    """No known_hosts file has a key for the host. Final: never asked, never retried."""

    code = "hostkey_unknown"
    remedy = "compare the fingerprint, then accept it with --accept-new-host-key"


class HostkeyChanged(Unreachable):
    """The host presents a different key from the one in known_hosts. Final."""

    code = "hostkey_changed"
    remedy = "find out why before you remove the old key with ssh-keygen -R"


class HostkeyRevoked(Unreachable):
    """The host presents a key that known_hosts marks as @revoked. Final."""

    code = "hostkey_revoked"
    remedy = "the key must not be trusted: give the host a new one"


class HostCertificateInvalid(Unreachable):
    """The host's certificate has expired, is for other names, or has no trusted signature."""

    code = "hostcert_invalid"
    remedy = "renew the host's certificate, or trust its authority with @cert-authority"


class AuthFailed(Unreachable):
    """The host refuses every key and certificate offered for that user. Never retried."""

    code = "auth_failed"
    remedy = "check user and identity; ssh -v shows what is offered"


class IdentityInvalid(Unreachable):
    """An identity file is missing, unreadable, or locked by a passphrase."""

    code = "identity_invalid"
    remedy = "check the path; for a key with a passphrase use ssh-agent"
