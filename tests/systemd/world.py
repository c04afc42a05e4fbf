"""Engines as units of hosts: scripts that print a start-up of ours, then wait or fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab import api

FIRST = "gh200-01"


def start_up(
    *,
    before: float = 77.0,
    weights: float = 40.0,
    fraction: float = 0.9,
    token_bytes: int = 98_304,
    ranks: int = 2,
) -> tuple[str, int, float]:
    """(text of one SGLang start, its tokens, its pool in GiB); the numbers close."""
    after = before - weights
    pool = round(after - (1 - fraction) * before, 2)
    tokens = int(pool * 2**30 // token_bytes)
    lines = [
        f"server_args=ServerArgs(model_path='/models/m', mem_fraction_static={fraction}, "
        f"tp_size={ranks}, max_total_tokens=None)"
    ]
    stamp = "2026-05-04 09:10:1"
    for rank in range(ranks):
        head = f"[{stamp}{rank % 10} TP{rank}]"
        lines += [
            f"{head} Load weight begin. avail mem={before:.2f} GB",
            f"{head} Load weight end. type=MForCausalLM, dtype=torch.bfloat16, "
            f"avail mem={after:.2f} GB, mem usage={weights:.2f} GB.",
            f"{head} KV Cache is allocated. #tokens: {tokens}, K size: {pool / 2:.2f} GB, "
            f"V size: {pool / 2:.2f} GB",
            f"{head} Memory pool end. avail mem={after - pool - 0.6:.2f} GB",
            f"{head} Capture cuda graph begin. This can take up to several minutes. "
            f"avail mem={after - pool - 0.7:.2f} GB",
            f"{head} Capture cuda graph end. Time elapsed: 9.10 s. mem usage=1.10 GB. "
            f"avail mem={after - pool - 1.8:.2f} GB.",
        ]
    lines.append(
        f"[2026-05-04 09:10:30 TP0] max_total_num_tokens={tokens}, chunked_prefill_size=4096, "
        f"max_prefill_tokens=8192, max_running_requests=32, context_len=32768, "
        f"available_gpu_mem={after - pool - 1.8:.2f} GB"
    )
    lines.append("[2026-05-04 09:10:31] The server is fired up and ready to roll!")
    return "\n".join(lines) + "\n", tokens, pool


@dataclass(frozen=True)
class World:
    """The lab and a state directory of its own for the product."""

    lab: api.Lab
    state: Path

    def sh(self, script: str, host: str = FIRST, check: bool = True) -> str:
        """Runs a shell script as root inside a host."""
        done = self.lab.exec(host, "sh", "-c", script)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def put(self, host: str, name: str, text: str) -> str:
        """A file in the host's /run/host; its path there."""
        (self.lab.directory / host / name).write_text(text, "utf-8")
        return f"/run/host/{name}"

    def kernel_lines(self, *messages: str, host: str = FIRST) -> None:
        """Kernel lines of this moment in the host's journal, in a journal file of their own."""
        boot = self.sh("cat /proc/sys/kernel/random/boot_id", host).strip().replace("-", "")
        machine = self.sh("cat /etc/machine-id", host).strip()
        now = int(self.sh("date +%s%6N", host))
        entries = "".join(
            f"__REALTIME_TIMESTAMP={now + at}\n__MONOTONIC_TIMESTAMP={10**9 + at}\n"
            f"_BOOT_ID={boot}\n_MACHINE_ID={machine}\n_TRANSPORT=kernel\n"
            f"SYSLOG_IDENTIFIER=kernel\nPRIORITY=3\nMESSAGE={message}\n\n"
            for at, message in enumerate(messages)
        )
        name = f"kernel-{uuid.uuid4().hex}.journal"
        subprocess.run(
            [
                "/usr/lib/systemd/systemd-journal-remote",
                "-o",
                self.lab.directory / host / name,
                "-",
            ],
            input=entries,
            text=True,
            check=True,
            capture_output=True,
            env={**os.environ, "SYSTEMD_JOURNAL_COMPACT": "0"},  # before 252 systemd reads no other
        )
        self.sh(f"cp /run/host/{name} /var/log/journal/{machine}/{name}", host)

    def unit(
        self, name: str, text: str, then: str = "exec sleep 1000", host: str = FIRST, more: str = ""
    ) -> None:
        """A service whose one long-lived shell prints *text* and goes on with *then*."""
        path = self.put(host, f"{name}.log", text)
        script = self.put(
            host,
            f"{name}.sh",
            f'while IFS= read -r line; do printf "%s\\n" "$line"; done <{path}\n{then}\n',
        )
        service = f"[Service]\nExecStart=/bin/sh {script}\n{more}\n"
        source = self.put(host, f"{name}.service", service)
        self.sh(f"cp {source} /etc/systemd/system/{name}.service; systemctl daemon-reload", host)

    def restart(self, name: str, last: str = "ready to roll", host: str = FIRST) -> str:
        """Starts the unit anew and waits for its last line; the invocation's id."""
        self.sh(f"systemctl reset-failed {name}; systemctl restart {name}", host)
        show = f"systemctl show --property=InvocationID --value {name}"
        found = self.sh(show, host).strip()
        self.wait(
            f"{name} prints {last!r}",
            lambda: last in self.sh(f"journalctl -q _SYSTEMD_INVOCATION_ID={found}", host),
        )
        return found

    def wait(self, what: str, happened: Callable[[], object], seconds: float = 120) -> None:
        """Until *happened* is true."""
        until = time.monotonic() + seconds
        while not happened():
            if time.monotonic() > until:
                pytest.fail(f"{what}: not within {seconds} s")
            time.sleep(0.1)

    def run(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """The product at the shell, over SSH to the hosts."""
        if "-H" in words:  # all that was logged so far is in the journal
            for host in self.lab.hosts:
                self.sh("journalctl --sync", host)
        command = [sys.executable, "-c", "from fleetmem.controller.cli import main; import sys; "]
        command[-1] += "sys.exit(main())"
        done = subprocess.run(
            [*command, *words],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=400,
            check=False,
            env={
                **os.environ,
                "XDG_STATE_HOME": str(self.state),
                "FLEETMEM_INVENTORY": str(self.lab.inventory),
                "NO_COLOR": "1",
            },
        )
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done

    def data(self, *words: str) -> dict[str, Any]:
        """The product's envelope."""
        found = json.loads(self.run(*words, "-o", "json").stdout)
        assert isinstance(found, dict)
        return found

    def audit(self, *words: str, host: str = FIRST) -> list[dict[str, Any]]:
        """Invocations of the first log, newest first."""
        envelope = self.data("audit", "startup", "-H", host, *words)
        sections = envelope["hosts"][0]["startup"]
        assert sections, envelope["hosts"][0]
        return sorted(sections[0]["invocations"], key=lambda one: int(one["age"]))
