"""Services of the host, told by who they are: executable, user and place, never by a name
that any process can give itself, and never by a socket's path."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, FrozenSet, Optional

    from fleetmem.agent.shapes import Tied

FOLDERS = ("/usr/", "/bin/", "/sbin/", "/lib/", "/lib64/", "/opt/", "/snap/")
"""Where only an administrator puts programs."""

PROGRAMS: Dict[str, str] = {
    name: kind
    for kind, names in (
        (
            "login",
            "sshd sshd-session sshd-auth dropbear login agetty getty mingetty systemd-logind"
            " polkitd",
        ),
        (
            "logs",
            "systemd-journald systemd-journal-remote systemd-journal-upload rsyslogd syslog-ng"
            " fluent-bit fluentd vector promtail filebeat otelcol otelcol-contrib auditd alloy",
        ),
        (
            "names",
            "dbus-daemon dbus-broker dbus-broker-launch nscd sssd sssd_nss sssd_be sssd_pam nslcd"
            " systemd-resolved systemd-userdbd systemd-userwork avahi-daemon",
        ),
        (
            "runtime",
            "dockerd docker-proxy containerd containerd-shim containerd-shim-runc-v1"
            " containerd-shim-runc-v2 conmon conmonrs crio rootlesskit"
            " systemd-nspawn systemd-machined lxc-start lxd incusd"
            " cri-dockerd buildkitd",
        ),
        ("scheduler", "kubelet slurmd slurmstepd slurmctld munged cron crond atd anacron"),
        (
            "monitoring",
            "nv-hostengine dcgm-exporter node_exporter telegraf collectd netdata gpud"
            " nvidia_gpu_exporter",
        ),
        ("mps", "nvidia-cuda-mps-control nvidia-cuda-mps-server"),
        (
            "other",
            "nvidia-persistenced nv-fabricmanager nvidia-imex nvidia-powerd systemd-udevd"
            " systemd-networkd systemd-timesyncd chronyd ntpd irqbalance multipathd snapd",
        ),
    )
    for name in names.split()
}
INITS = frozenset(
    (
        *("systemd", "init", "tini", "tini-static", "dumb-init", "catatonit", "docker-init"),
        *("podman-init", "runsvdir", "s6-svscan", "my_init", "openrc-init", "procd", "pause"),
    )
)
"""Processes that adopt orphans, and start nothing but what they supervise."""

USER_PARTS = ("sshd", "sshd-session", "dropbear")
"""Services with processes that run as the user they serve."""

BY_USER = frozenset(("rootlesskit", "conmon", "dockerd", "containerd"))
"""Runtimes that people run for themselves."""

SESSION_BUS = frozenset(("dbus-daemon", "dbus-broker", "dbus-broker-launch"))
SERVICE_USERS_BELOW = 1000
"""Numbers of users that are services; people have higher ones."""


def program(row: Tied) -> str:
    """The last part of its executable, ``""`` where that is unknown."""
    exe = row["exe"] or ""
    if exe.endswith(" (deleted)"):  # replaced by an update while it runs
        exe = exe[: -len(" (deleted)")]
    return exe.rpartition("/")[2] if exe.startswith(FOLDERS) else ""


def kind(row: Tied, agent: FrozenSet[int]) -> Optional[str]:
    """Which service of the host a process is, ``None`` where it is none."""
    if row["kernel_thread"]:
        return "other"
    name = program(row)
    if row["pid"] == 1 or name in INITS:
        return "init"
    if row["pid"] in agent:
        return "agent"
    found = PROGRAMS.get(name)
    if found is None:
        return None
    own = row["uid"] < SERVICE_USERS_BELOW or name in USER_PARTS
    return found if own or name in BY_USER or name in SESSION_BUS else None


def adopts(row: Tied, starts_own_session: bool) -> Optional[bool]:
    """Whether a process only takes in orphans. ``None``: that cannot be told.

    *starts_own_session*: a child of it lives in its own session, as one does that it
    started. An init of a container that is a program of its own may have.
    """
    name = program(row)
    if row["pid"] == 1 or name in INITS or name.startswith(("containerd-shim", "conmon")):
        return True
    if row["pids_inside"][-1:] == [1] and len(row["pids_inside"]) > 1:
        return None if starts_own_session else True
    return False if starts_own_session else None
