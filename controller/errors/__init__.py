"""Every error a person can meet, as one tree.

    FleetError
    ├── UsageError                    usage_error             2
    │   ├── InventoryInvalid          inventory_invalid
    │   ├── NoHostsMatch              no_hosts_match
    │   ├── RangeTooLarge             range_too_large
    │   ├── PlaybookInvalid           playbook_invalid
    │   └── PlanInvalid               plan_invalid
    ├── Unreachable                   unreachable             4, outcome unreachable
    │   ├── DnsFailed                 dns_failed
    │   ├── ConnectTimeout            connect_timeout
    │   ├── ConnectRefused            connect_refused
    │   ├── ConnectFailed             connect_failed
    │   ├── GatewayUnreachable        gateway_unreachable
    │   ├── SshProtocol               ssh_protocol
    │   ├── HostkeyUnknown            hostkey_unknown
    │   ├── HostkeyChanged            hostkey_changed
    │   ├── HostkeyRevoked            hostkey_revoked
    │   ├── HostCertificateInvalid    hostcert_invalid
    │   ├── AuthFailed                auth_failed
    │   └── IdentityInvalid           identity_invalid
    ├── HostFailed                    host_failed             3, outcome failed
    │   ├── SessionLost               session_lost
    │   ├── SudoPasswordRequired      sudo_password_required
    │   ├── SudoPasswordWrong         sudo_password_wrong
    │   ├── SudoTtyRequired           sudo_tty_required
    │   ├── SudoDenied                sudo_denied
    │   ├── PythonMissing             python_missing
    │   ├── PythonTooOld              python_too_old
    │   ├── PythonIncomplete          python_incomplete
    │   ├── NoProcesses               no_processes
    │   ├── RemoteDiskFull            remote_disk_full
    │   ├── AgentFailed               agent_failed
    │   ├── ProtocolMismatch          protocol_mismatch
    │   ├── CommandFailed             command_failed
    │   ├── LogUnreadable             log_unreadable
    │   ├── ProbeFailed               probe_failed
    │   ├── UntrustedOutput           untrusted_output
    │   ├── NvmlMissing               nvml_missing
    │   ├── NvmlMismatch              nvml_mismatch
    │   ├── NvmlHung                  nvml_hung               3, outcome partial
    │   ├── NvmlNoDriver              nvml_no_driver
    │   ├── NvmlDenied                nvml_denied
    │   └── NvmlFailed                nvml_failed
    ├── TimedOut                      timed_out               3, outcome timed_out
    ├── NotAttempted                  not_attempted           3, outcome not_attempted
    ├── Refused                       refused                 7
    │   ├── Locked                    locked
    │   ├── StalePlan                 stale_plan
    │   ├── Protected                 protected
    │   ├── NotPermitted              not_permitted
    │   ├── NoStateDir                no_state_dir
    │   ├── DrainRefused              drain_refused
    │   └── HistoryUnavailable        history_unavailable
    ├── NotRecovered                  not_recovered           5
    ├── OutcomeUnknown                outcome_unknown         8, outcome unknown
    ├── HungUp                        hung_up               129
    ├── Interrupted                   interrupted           130
    ├── Terminated                    terminated            143
    └── InternalError                 internal                1

Catch broadly (:class:`FleetError`), recover narrowly. The first line of a class's docstring
is the meaning of its code, ``remedy`` is what to do; ``docs/errors.md`` is made of both.
"""

from __future__ import annotations

from fleetmem.controller.errors.base import (
    EXIT_INTERNAL,
    EXIT_NONE_REACHED,
    EXIT_NOT_RECOVERED,
    EXIT_OK,
    EXIT_PLAN_ONLY,
    EXIT_REFUSED,
    EXIT_SIGHUP,
    EXIT_SIGINT,
    EXIT_SIGTERM,
    EXIT_SOME_FAILED,
    EXIT_UNKNOWN,
    EXIT_USAGE,
    SIGNALLED,
    FleetError,
)
from fleetmem.controller.errors.on_host import (
    AgentFailed,
    CommandFailed,
    HostFailed,
    LogUnreadable,
    NoProcesses,
    NvmlDenied,
    NvmlFailed,
    NvmlHung,
    NvmlMismatch,
    NvmlMissing,
    NvmlNoDriver,
    ProbeFailed,
    ProtocolMismatch,
    PythonIncomplete,
    PythonMissing,
    PythonTooOld,
    RemoteDiskFull,
    SessionLost,
    SudoDenied,
    SudoPasswordRequired,
    SudoPasswordWrong,
    SudoTtyRequired,
    UntrustedOutput,
)
from fleetmem.controller.errors.unreachable import (
    AuthFailed,
    ConnectFailed,
    ConnectRefused,
    ConnectTimeout,
    DnsFailed,
    GatewayUnreachable,
    HostCertificateInvalid,
    HostkeyChanged,
    HostkeyRevoked,
    HostkeyUnknown,
    IdentityInvalid,
    SshProtocol,
    Unreachable,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "EXIT_INTERNAL",
    "EXIT_NONE_REACHED",
    "EXIT_NOT_RECOVERED",
    "EXIT_OK",
    "EXIT_PLAN_ONLY",
    "EXIT_REFUSED",
    "EXIT_SIGHUP",
    "EXIT_SIGINT",
    "EXIT_SIGTERM",
    "EXIT_SOME_FAILED",
    "EXIT_UNKNOWN",
    "EXIT_USAGE",
    "SIGNALLED",
    "AgentFailed",
    "AuthFailed",
    "CommandFailed",
    "ConnectFailed",
    "ConnectRefused",
    "ConnectTimeout",
    "DnsFailed",
    "DrainRefused",
    "FleetError",
    "GatewayUnreachable",
    "HistoryUnavailable",
    "HostCertificateInvalid",
    "HostFailed",
    "HostkeyChanged",
    "HostkeyRevoked",
    "HostkeyUnknown",
    "HungUp",
    "IdentityInvalid",
    "InternalError",
    "Interrupted",
    "InventoryInvalid",
    "Locked",
    "LogUnreadable",
    "NoHostsMatch",
    "NoProcesses",
    "NoStateDir",
    "NotAttempted",
    "NotPermitted",
    "NotRecovered",
    "NvmlDenied",
    "NvmlFailed",
    "NvmlHung",
    "NvmlMismatch",
    "NvmlMissing",
    "NvmlNoDriver",
    "OutcomeUnknown",
    "PlanInvalid",
    "PlaybookInvalid",
    "ProbeFailed",
    "Protected",
    "ProtocolMismatch",
    "PythonIncomplete",
    "PythonMissing",
    "PythonTooOld",
    "RangeTooLarge",
    "Refused",
    "RemoteDiskFull",
    "SessionLost",
    "SshProtocol",
    "StalePlan",
    "SudoDenied",
    "SudoPasswordRequired",
    "SudoPasswordWrong",
    "SudoTtyRequired",
    "Terminated",
    "TimedOut",
    "Unreachable",
    "UntrustedOutput",
    "UsageError",
    "by_code",
    "rows",
]


class UsageError(FleetError):
    """An option or argument is invalid."""

    code = "usage_error"
    exit_code = EXIT_USAGE
    remedy = "see --help of the command"


class InventoryInvalid(UsageError):
    """The inventory, a host file or its settings are invalid; every mistake is listed."""

    code = "inventory_invalid"
    remedy = "fix the entries listed; inventory.example.yaml shows every key"


class NoHostsMatch(UsageError):
    """A part of the host selector matches nothing."""

    code = "no_hosts_match"
    remedy = "list the hosts with: fleetmem hosts -H @all"


class RangeTooLarge(UsageError):
    """A node set names more hosts than one run may target."""

    code = "range_too_large"
    remedy = "name a smaller range"


class PlaybookInvalid(UsageError):
    """A playbook is invalid; every mistake is listed."""

    code = "playbook_invalid"
    remedy = "fix the lines listed"


class PlanInvalid(UsageError):
    """The plan is unknown or damaged, or its hash does not match its content."""

    code = "plan_invalid"
    remedy = "make a new plan with reclaim --dry-run"


class TimedOut(FleetError):
    """The host did not finish within its deadline."""

    code = "timed_out"
    exit_code = EXIT_SOME_FAILED
    outcome = "timed_out"
    remedy = "look at the host, or raise --timeout"


class NotAttempted(FleetError):
    """The run ended before this host's turn: failure cap, deadline or interrupt."""

    code = "not_attempted"
    exit_code = EXIT_SOME_FAILED
    outcome = "not_attempted"
    remedy = "run again with -H @run:ID:not_attempted"


class Refused(FleetError):
    """A safeguard refused; nothing was changed."""

    code = "refused"
    exit_code = EXIT_REFUSED


class Locked(Refused):
    """Another run holds the host's lock."""

    code = "locked"
    remedy = "wait for the other run to end"


class StalePlan(Refused):
    """The plan is expired, or the host was rebooted or changed since it was made."""

    code = "stale_plan"
    remedy = "make a new plan with reclaim --dry-run"


class Protected(Refused):
    """The target is on the protect list."""

    code = "protected"
    remedy = "only --override-protected PID, for that one process, overrides"


class NotPermitted(Refused):
    """The user is not allowed to do that on the host."""

    code = "not_permitted"
    remedy = "connect as root, or set sudo: true"


class NoStateDir(Refused):
    """The user has no private runtime directory on the host for the lock and the records."""

    code = "no_state_dir"
    remedy = "connect as root, set sudo: true, or enable one: loginctl enable-linger USER"


class DrainRefused(Refused):
    """The engine is still serving requests, or that is unknown."""

    code = "drain_refused"
    remedy = "stop its traffic first, or use --no-drain"


class HistoryUnavailable(Refused):
    """The run history cannot be written, and nothing may change a host without a trail."""

    code = "history_unavailable"
    remedy = "make room in, or give write access to, the state directory"


class NotRecovered(FleetError):
    """The memory did not come back; the remaining holders are named."""

    code = "not_recovered"
    exit_code = EXIT_NOT_RECOVERED


class OutcomeUnknown(FleetError):
    """A change was started and its outcome was not seen. Never retried."""

    code = "outcome_unknown"
    exit_code = EXIT_UNKNOWN
    outcome = "unknown"
    remedy = "look first with --dry-run; a new plan starts above the unresolved rung"


class HungUp(FleetError):
    """The terminal or connection was closed (SIGHUP); finished results are kept."""

    code = "hung_up"
    exit_code = EXIT_SIGHUP


class Interrupted(FleetError):
    """The run was interrupted (SIGINT); finished results are kept."""

    code = "interrupted"
    exit_code = EXIT_SIGINT


class Terminated(FleetError):
    """The run was terminated (SIGTERM); finished results are kept."""

    code = "terminated"
    exit_code = EXIT_SIGTERM


class InternalError(FleetError):
    """A bug in fleetmem itself."""

    code = "internal"
    exit_code = EXIT_INTERNAL
    remedy = "please report it with the output of --debug"


def rows() -> list[tuple[str, int, str, str]]:
    """The table of ``docs/errors.md``: (code, exit code, meaning, what to do), parents first."""
    return [
        (kind.code, kind.exit_code, _meaning(kind), kind.remedy or "–")
        for kind in _tree(FleetError)
        if kind is not FleetError
    ]


def by_code(code: str) -> type[FleetError] | None:
    """The class whose stable word is *code*."""
    return next((kind for kind in _tree(FleetError) if kind.code == code), None)


def _tree(kind: type[FleetError]) -> Iterator[type[FleetError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__.startswith(__name__):
            yield from _tree(child)


def _meaning(kind: type[FleetError]) -> str:
    return (kind.__doc__ or "").strip().split("\n\n", 1)[0].replace("\n", " ")
