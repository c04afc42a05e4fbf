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
    │   ├── RemoteDiskFull            remote_disk_full
    │   ├── AgentFailed               agent_failed
    │   ├── ProtocolMismatch          protocol_mismatch
    │   ├── CommandFailed             command_failed
    │   ├── LogUnreadable             log_unreadable
    │   ├── ProbeFailed               probe_failed
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
    ├── Interrupted                   interrupted           130
    ├── Terminated                    terminated            143
    └── InternalError                 internal                1

Catch broadly (:class:`FleetError`), recover narrowly. The first line of a class's docstring
is the meaning of its code, ``remedy`` is what to do; ``docs/errors.md`` is made of both.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from fleetmem.controller.answer.envelope import Error, HostOutcome

EXIT_OK = 0
EXIT_INTERNAL = 1
EXIT_USAGE = 2
EXIT_SOME_FAILED = 3
EXIT_NONE_REACHED = 4
EXIT_NOT_RECOVERED = 5
EXIT_PLAN_ONLY = 6
EXIT_REFUSED = 7
EXIT_UNKNOWN = 8
EXIT_SIGINT = 130
EXIT_SIGTERM = 143


class FleetError(Exception):
    """Something went wrong that a person can understand.

    ``code`` is a stable word, ``exit_code`` the process status if this error ends the run,
    ``outcome`` how a host ends that meets it. ``message`` is one line, ``hint`` what to do.
    """

    code = "error"
    exit_code = EXIT_INTERNAL
    outcome: HostOutcome = "failed"
    remedy = ""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.remedy

    def to_json(self) -> Error:
        """The envelope's ``error``: code, message, hint (null where there is none)."""
        return {"code": self.code, "message": self.message, "hint": self.hint or None}


class UsageError(FleetError):
    """An option or argument cannot be used as given."""

    code = "usage_error"
    exit_code = EXIT_USAGE
    remedy = "see --help of the command"


class InventoryInvalid(UsageError):
    """The inventory, a host file or its settings cannot be used; every mistake is listed."""

    code = "inventory_invalid"
    remedy = "correct what is named; inventory.example.yaml shows every key"


class NoHostsMatch(UsageError):
    """A part of the host selector matches nothing."""

    code = "no_hosts_match"
    remedy = "list what there is with: fleetmem hosts -H @all"


class RangeTooLarge(UsageError):
    """A node set names more hosts than one run may target."""

    code = "range_too_large"
    remedy = "name a smaller range"


class PlaybookInvalid(UsageError):
    """A playbook cannot be used; every mistake is listed."""

    code = "playbook_invalid"
    remedy = "correct the lines named"


class PlanInvalid(UsageError):
    """The plan is unknown, damaged, or its hash does not fit its content."""

    code = "plan_invalid"
    remedy = "make a new plan with reclaim --dry-run"


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
    """The network gave the connection up: no route, reset, or closed during the handshake."""

    code = "connect_failed"
    remedy = "check the route to the host and sshd's MaxStartups"


class GatewayUnreachable(Unreachable):
    """A jump host on the way was not reached or would not forward; the hop is named."""

    code = "gateway_unreachable"
    remedy = "check the hop that the message names"


class SshProtocol(Unreachable):
    """The other side does not speak SSH in a way both ends accept."""

    code = "ssh_protocol"
    remedy = "check that the port belongs to an SSH server, and its algorithms"


class HostkeyUnknown(Unreachable):
    """No known_hosts file has a key for the host. Final: never asked, never retried."""

    code = "hostkey_unknown"
    remedy = "compare the fingerprint, then accept it with --accept-new-host-key"


class HostkeyChanged(Unreachable):
    """The host shows another key than the one known_hosts has. Final."""

    code = "hostkey_changed"
    remedy = "find out why before you remove the old key with ssh-keygen -R"


class HostkeyRevoked(Unreachable):
    """The host shows a key that known_hosts marks as @revoked. Final."""

    code = "hostkey_revoked"
    remedy = "the key must not be trusted: give the host a new one"


class HostCertificateInvalid(Unreachable):
    """The host's certificate is expired, for other names, or signed by no trusted authority."""

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


class HostFailed(FleetError):
    """The host was reached, but the work on it failed."""

    code = "host_failed"
    exit_code = EXIT_SOME_FAILED


class SessionLost(HostFailed):
    """The session ended without exit status and signal: never counted as success."""

    code = "session_lost"
    remedy = "run again; what had been finished is kept"


class SudoPasswordRequired(HostFailed):
    """sudo asks for a password and none was given."""

    code = "sudo_password_required"
    remedy = "use --ask-sudo-password, or allow sudo without a password for that user"


class SudoPasswordWrong(HostFailed):
    """sudo did not take the password. It is not tried again."""

    code = "sudo_password_wrong"
    remedy = "run again with the right password"


class SudoTtyRequired(HostFailed):
    """The host's sudoers file has requiretty, which a session without a terminal cannot meet."""

    code = "sudo_tty_required"
    remedy = "add to sudoers: Defaults:USER !requiretty"


class SudoDenied(HostFailed):
    """sudo is missing, or the user may not run the agent with it."""

    code = "sudo_denied"
    remedy = "check sudo -l on the host, or set sudo: false"


class PythonMissing(HostFailed):
    """No Python interpreter was found on the host."""

    code = "python_missing"
    remedy = "install python3 (3.8 or newer), or name one with python: in the inventory"


class PythonTooOld(HostFailed):
    """The host's Python is older than 3.8."""

    code = "python_too_old"
    remedy = "name a newer one with python: in the inventory"


class PythonIncomplete(HostFailed):
    """The host's Python lacks modules of the standard library."""

    code = "python_incomplete"
    remedy = "install the full python3 package, or name another with python: in the inventory"


class RemoteDiskFull(HostFailed):
    """The host has no room for something that had to be written there."""

    code = "remote_disk_full"
    remedy = "make room on the host"


class AgentFailed(HostFailed):
    """The agent did not start or ended in the middle; its last words are in the message."""

    code = "agent_failed"
    remedy = "run again with --debug"


class ProtocolMismatch(HostFailed):
    """What answers on the host is no agent of this protocol."""

    code = "protocol_mismatch"
    remedy = "check what the login shell starts; run again with --debug"


class CommandFailed(HostFailed):
    """The command of a local or command transport could not be started."""

    code = "command_failed"
    remedy = "check command: in the inventory"


class LogUnreadable(HostFailed):
    """The log that was asked for is not there or cannot be read; it and the reason are named."""

    code = "log_unreadable"
    remedy = "check its name and its permissions"


class ProbeFailed(HostFailed):
    """A reading that the command cannot do without was not given; its reason is named."""

    code = "probe_failed"
    remedy = "look at the reading with -o json"


class NvmlMissing(HostFailed):
    """The host has no libnvidia-ml.so.1: no NVIDIA driver, or not where the loader looks."""

    code = "nvml_missing"
    remedy = "install the driver, or leave the host out"


class NvmlMismatch(HostFailed):
    """The NVML library and the loaded kernel module are of different versions."""

    code = "nvml_mismatch"
    remedy = "reload the kernel module or reboot the host after the driver's update"


class NvmlHung(HostFailed):
    """NVML did not answer in time; it is not asked again while a process is stuck in it."""

    code = "nvml_hung"
    outcome = "partial"  # the host's other readings are there
    remedy = "look at the kernel's log for Xid lines; the driver may need a reboot"


class NvmlNoDriver(HostFailed):
    """The NVML library is there, but the driver's kernel module is not loaded."""

    code = "nvml_no_driver"
    remedy = "load it (modprobe nvidia), or look at the kernel's log for why it does not load"


class NvmlDenied(HostFailed):
    """The user may not ask NVML on that host."""

    code = "nvml_denied"
    remedy = "connect as root, set sudo: true, or allow the user the device nodes"


class NvmlFailed(HostFailed):
    """NVML answers with an error; it is named."""

    code = "nvml_failed"
    remedy = "look at nvidia-smi and the kernel's log on the host"


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
    """A safeguard said no; nothing was changed."""

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
    """The user may not do that on the host."""

    code = "not_permitted"
    remedy = "connect as root, or set sudo: true"


class NoStateDir(Refused):
    """The user has no private runtime directory on the host for the lock and the records."""

    code = "no_state_dir"
    remedy = "connect as root, set sudo: true, or enable one: loginctl enable-linger USER"


class DrainRefused(Refused):
    """The engine still works, or cannot say whether it does."""

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
    """A change was begun and its end was not seen. Never retried."""

    code = "outcome_unknown"
    exit_code = EXIT_UNKNOWN
    outcome = "unknown"
    remedy = "look first with --dry-run; a new plan starts above the unresolved rung"


class Interrupted(FleetError):
    """The run was interrupted (SIGINT); what had been finished is kept."""

    code = "interrupted"
    exit_code = EXIT_SIGINT


class Terminated(FleetError):
    """The run was ended (SIGTERM); what had been finished is kept."""

    code = "terminated"
    exit_code = EXIT_SIGTERM


class InternalError(FleetError):
    """A mistake in fleetmem itself."""

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
        if child.__module__ == __name__:
            yield from _tree(child)


def _meaning(kind: type[FleetError]) -> str:
    return (kind.__doc__ or "").strip().split("\n\n", 1)[0].replace("\n", " ")


_FIRST_OF = (
    EXIT_SIGINT,
    EXIT_SIGTERM,
    EXIT_INTERNAL,
    EXIT_USAGE,
    EXIT_UNKNOWN,
    EXIT_NONE_REACHED,
    EXIT_NOT_RECOVERED,
    EXIT_REFUSED,
    EXIT_SOME_FAILED,
    EXIT_PLAN_ONLY,
)
_FAILED = frozenset({"failed", "unreachable", "timed_out", "not_attempted"})


def exit_code_over(outcomes: Iterable[str], codes: Iterable[int] = ()) -> int:
    """The process status for a run over many hosts.

    *outcomes* are the hosts' outcomes, *codes* whatever else happened: the exit codes of
    errors, verdicts and findings. 4 needs every host unreachable or not attempted and at
    least one unreachable, so a 4 among *codes* counts only where there are no hosts;
    ``partial`` alone is a success.
    """
    seen = list(outcomes)
    found = set(codes)
    if seen and EXIT_NONE_REACHED in found:
        found.discard(EXIT_NONE_REACHED)
    if "unknown" in seen:
        found.add(EXIT_UNKNOWN)
    if "unreachable" in seen and all(word in ("unreachable", "not_attempted") for word in seen):
        found.add(EXIT_NONE_REACHED)
    if not _FAILED.isdisjoint(seen):
        found.add(EXIT_SOME_FAILED)
    return next((code for code in _FIRST_OF if code in found), EXIT_OK)
