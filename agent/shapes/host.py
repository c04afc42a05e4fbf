"""Shapes of ``host.facts``, ``host.operations``."""

from __future__ import annotations

from typing_extensions import TypedDict


class HostFacts(TypedDict):
    """Reading of ``host.facts``. ``agent_pids``: the agent and all its ancestors."""

    hostname: str
    boot_id: str
    kernel: str
    machine: str
    python: str
    page_size_bytes: int
    clock_ticks: int
    uptime_seconds: float
    uid: int
    user: str | None
    pid: int
    pid_namespace: int | None
    init_pid_namespace: bool
    agent_pids: list[int]
    systemd: bool
    total_bytes: int | None
    state_dir: str | None
    state_dir_reason: str | None


class SignalRecord(TypedDict):
    """One signal that some run intended for an identity; ``done`` false = no result on record.

    ``result``: sent, gone, failed; without a result what the kernel shows now: ``sent`` (pending,
    then ``done`` is true), ``gone``, ``not_sent`` (it may be sent again) or ``None``: unknown.
    """

    operation: str
    pid: int
    start_time: int
    signal: str
    done: bool
    result: str | None


class Locked(TypedDict):
    """Answer to ``lock``: the host's epoch from now on."""

    epoch: int


class HostOperations(TypedDict):
    """Reading of ``host.operations``: the host's ledger."""

    epoch: int
    locked_by: str | None
    signals: list[SignalRecord]
