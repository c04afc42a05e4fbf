"""A host without room for one more process: nothing was begun, and it is said so."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import pytest

from fleetmem.agent import calls, serve, wire

FULL = BlockingIOError(11, "Resource temporarily unavailable")


def test_a_fork_that_fails_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise FULL

    monkeypatch.setattr(os, "fork", fork)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BlockingIOError):
        calls.Child.start("fleetmem-call", [], lambda *_: None)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("name", "more"), [("signal.send", {}), ("gpu.devices", {}), ("host.facts", {"share": "x"})]
)
def test_a_call_that_could_not_start_is_answered(
    monkeypatch: pytest.MonkeyPatch, name: str, more: dict[str, Any]
) -> None:
    def start(*_given: Any) -> calls.Child:
        raise FULL

    monkeypatch.setattr(serve.Child, "start", start)
    monkeypatch.setattr(serve.lifeline, "stuck_nvml", lambda: None)
    incoming, outgoing = os.pipe()
    sent: deque[bytes] = deque()
    server = serve._Server(incoming, outgoing, outgoing)
    monkeypatch.setattr(server, "send_bytes", sent.append)
    try:
        server._call({"type": "call", "id": 7, "name": name, **more})
    finally:
        os.close(incoming)
        os.close(outgoing)
    (answer,) = wire.Decoder().feed(sent.popleft())
    assert (answer["id"], answer["outcome"], answer["code"]) == (7, "failed", "no_processes")
    assert answer["reason"] == "no process could be started: Resource temporarily unavailable"
    assert not sent
    assert not server.children
