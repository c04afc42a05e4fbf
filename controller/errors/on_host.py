"""Errors of hosts that were reached, and could not do what was asked."""

from __future__ import annotations

from fleetmem.controller.errors.base import EXIT_SOME_FAILED, FleetError


class HostFailed(FleetError):
    """The host was reached, but the work on it failed."""

    code = "host_failed"
    exit_code = EXIT_SOME_FAILED


class SessionLost(HostFailed):
    """The session ended without exit status and signal: never counted as success."""

    code = "session_lost"
    remedy = "run again; finished results are kept"


class SudoPasswordRequired(HostFailed):
    """sudo asks for a password, but none was given."""

    code = "sudo_password_required"
    remedy = "use --ask-sudo-password, or allow sudo without a password for that user"


class SudoPasswordWrong(HostFailed):
    """sudo rejected the password. It is not tried again."""

    code = "sudo_password_wrong"
    remedy = "run again with the right password"


class SudoTtyRequired(HostFailed):
    """The host's sudoers file has requiretty, which a session without a terminal cannot meet."""

    code = "sudo_tty_required"
    remedy = "add to sudoers: Defaults:USER !requiretty"


class SudoDenied(HostFailed):
    """sudo is missing, or the user is not allowed to run the agent with it."""

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


class NoProcesses(HostFailed):
    """The host could start no process more: its numbers or its limits are used up."""

    code = "no_processes"
    remedy = "end what fills the host's process table, or raise its limit (pids.max, ulimit -u)"


class AgentFailed(HostFailed):
    """The agent did not start or ended early; its last output is in the message."""

    code = "agent_failed"
    remedy = "run again with --debug"


class ProtocolMismatch(HostFailed):
    """What answers on the host does not speak this agent protocol."""

    code = "protocol_mismatch"
    remedy = "check what the login shell starts; run again with --debug"


class CommandFailed(HostFailed):
    """The command of a local or command transport could not be started."""

    code = "command_failed"
    remedy = "check command: in the inventory"


class LogUnreadable(HostFailed):
    """The requested log does not exist or cannot be read; the message says which and why."""

    code = "log_unreadable"
    remedy = "check its name and its permissions"


class ProbeFailed(HostFailed):
    """A reading that the command needs is missing; the message says why."""

    code = "probe_failed"
    remedy = "look at the reading with -o json"


class UntrustedOutput(HostFailed):
    """The host answered with something that fleetmem's own agent never sends."""

    code = "untrusted_output"
    remedy = "do not trust this host: find out who answers there in the agent's place"


class NvmlMissing(HostFailed):
    """The host has no libnvidia-ml.so.1: no NVIDIA driver, or not where the loader looks."""

    code = "nvml_missing"
    remedy = "install the driver, or leave the host out"


class NvmlMismatch(HostFailed):
    """The NVML library and the loaded kernel module have different versions."""

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
    """The user is not allowed to query NVML on that host."""

    code = "nvml_denied"
    remedy = "connect as root, set sudo: true, or allow the user the device nodes"


class NvmlFailed(HostFailed):
    """NVML returned an error; the message has it."""

    code = "nvml_failed"
    remedy = "look at nvidia-smi and the kernel's log on the host"
