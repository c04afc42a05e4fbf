"""Real units on real systemd hosts: the right invocation, the right status."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fleetmem.controller.startup.read.parse import parse
from tests.systemd.world import FIRST, World, start_up

pytestmark = pytest.mark.lab

FIXTURE = Path(__file__).parent.parent / "unit" / "startup" / "startup_fixtures" / "incident.log"


def figures(inv: dict[str, Any]) -> tuple[Any, ...]:
    values = inv["ranks"]["TP0"]
    return inv["status"], values["max_tokens"], round(values["kv_cache_bytes"] / 2**30, 2)


def test_a_unit_restarted_five_times(world: World) -> None:
    """The newest of five starts is shown, its age is 0, and older ones by their number."""
    made = []
    for number in range(5):
        text, tokens, pool = start_up(weights=40.0 + number)
        world.unit("sglang-five", text)
        made.append((world.restart("sglang-five"), tokens, pool))
    found = world.audit("--unit", "sglang-five")
    assert [one["invocation_id"] for one in found] == [one[0] for one in reversed(made)][:3]
    assert [one["age"] for one in found] == [0, 1, 2]
    assert figures(found[0]) == ("ready", made[4][1], pytest.approx(made[4][2], abs=0.02))
    assert {one["status"] for one in found[1:]} == {"stopped"}
    older = world.audit("--unit", "sglang-five.service", "--invocation", "3")
    assert [(one["age"], one["invocation_id"]) for one in older] == [(3, made[1][0])]
    assert older[0]["ranks"]["TP1"]["max_tokens"] == made[1][1]
    byid = world.audit("--unit", "sglang-five", "--invocation", made[2][0])
    assert [(one["age"], one["invocation_id"]) for one in byid] == [(2, made[2][0])]
    every = world.audit("--unit", "sglang-five", "--invocation", "all")
    assert [one["invocation_id"] for one in every] == [one[0] for one in reversed(made)]
    # What grep | head shows is the oldest start; ours is the newest.
    first = world.sh("journalctl -q -u sglang-five | grep 'KV Cache' | head -1")
    assert f"#tokens: {made[0][1]}," in first
    screen = world.run("audit", "startup", "-H", FIRST, "--unit", "sglang-five").stdout
    assert "PER RANK" in screen
    assert "target KV pool" in screen
    assert all(len(line) <= 100 for line in screen.splitlines() if not line.startswith("  next"))


def test_two_units_at_once(world: World) -> None:
    """Lines of two units that log at the same time are never mixed."""
    first, tokens, _ = start_up(before=70.0)
    second, others, _ = start_up(before=60.0, weights=20.0)
    world.unit("pair-a", first)
    world.unit("pair-b", second)
    world.sh("systemctl start pair-a pair-b")
    for name in ("pair-a", "pair-b"):
        world.wait(name, lambda n=name: "ready to roll" in world.sh(f"journalctl -q -u {n}"))  # type: ignore[misc]
    words = ("audit", "startup", "-H", FIRST)
    both = world.data(*words, "--unit", "pair-a", "--unit", "pair-b")["hosts"][0]["startup"]
    glob = world.data(*words, "--unit", "pair-*")["hosts"][0]["startup"]
    for sections in (both, glob):
        got = {
            one["unit"]: one["invocations"][-1]["ranks"]["TP1"]["max_tokens"] for one in sections
        }
        assert got == {"pair-a": tokens, "pair-b": others}


def test_a_crash_loop(world: World) -> None:
    """A unit that dies while it starts, again and again: failed, with the restart counter."""
    text, _, _ = start_up()
    cut = "".join(text.splitlines(keepends=True)[:3])
    error = (
        "[2026-05-04 09:10:12 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
    )
    more = "Restart=always\nRestartSec=100ms\n[Unit]\nStartLimitIntervalSec=0"
    world.unit("looping", cut + error, then="sleep 0.2; exit 1", more=more)
    world.sh("systemctl start looping")
    shown = "systemctl show --property=NRestarts --value looping"
    world.wait("three restarts", lambda: int(world.sh(shown)) >= 3)
    world.sh("systemctl stop looping")
    found = world.audit("--unit", "looping")
    assert len(found) == 3
    failed = [one for one in found if one["errors"]]
    assert failed
    assert {one["status"] for one in failed} == {"failed"}
    assert {error["kind"] for one in failed for error in one["errors"]} == {
        "weights_exceed_fraction"
    }
    assert any((one.get("restart_counter_after") or 0) >= 1 for one in found)


def test_an_oom_killed_unit(world: World) -> None:
    """Killed, and the kernel's line names its process: host memory, not the GPU's."""
    text, _, _ = start_up()
    world.unit("eater", text)
    made = world.restart("eater")
    pid = int(world.sh("systemctl show --property=MainPID --value eater"))
    world.kernel_lines(
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
        f"oom_memcg=/system.slice,task_memcg=/system.slice/eater.service,task=sh,pid={pid},uid=0",
        f"Memory cgroup out of memory: Killed process {pid} (sh) total-vm:9000000kB, "
        "anon-rss:7000000kB, file-rss:1000kB, shmem-rss:3000kB, UID:0",
        "Out of memory: Killed process 999999 (other) total-vm:1kB, anon-rss:1kB, "
        "file-rss:1kB, shmem-rss:1kB, UID:0",
    )
    world.sh("systemctl kill --signal=KILL eater")
    ended = "systemctl is-failed eater"
    world.wait("eater failed", lambda: "failed" in world.sh(ended, check=False))
    found = world.audit("--unit", "eater")
    assert found[0]["invocation_id"] == made
    assert found[0]["status"] == "failed"
    killed = [error for error in found[0]["errors"] if error["kind"] == "host_oom"]
    assert len(killed) == 1
    assert killed[0]["pid"] == pid
    lines = world.run("logs", "-H", FIRST, "-u", "eater", "-g", "killed process").stdout
    assert f"Killed process {pid} (sh)" in lines
    quiet = world.run("logs", "-H", FIRST, "-u", "eater", "-g", "killed process", "--no-kernel")
    assert "Killed process" not in quiet.stdout


def test_a_rotated_journal(world: World) -> None:
    """Starts in journal files that were rotated away, and one whose first lines are gone."""
    made = []
    before = world.sh("date +%s").strip()
    for number in range(3):
        text, tokens, _ = start_up(weights=30.0 + number)
        world.unit("rotated", text)
        made.append((world.restart("rotated"), tokens))
        world.sh("journalctl --rotate")
    found = world.audit("--unit", "rotated", "--invocation", "all")
    assert [one["invocation_id"] for one in found] == [one[0] for one in reversed(made)]
    assert [one["ranks"]["TP0"]["max_tokens"] for one in found] == [m[1] for m in reversed(made)]
    words = ("logs", "-H", FIRST, "--directory", "/var/log/journal", "--since", f"@{before}")
    lines = world.data(*words, "-g", r"started rotated")["hosts"][0]["logs"][0]["lines"]
    started = [row for row in lines if row["message"].startswith("Started rotated")]
    assert len(started) == 3
    wrong = world.run("logs", "-H", FIRST, "-u", "rotated", "--since", "nonsense", code=3).stdout
    assert "Failed to parse timestamp: nonsense" in wrong
    none = world.run("logs", "-H", FIRST, "-u", "rotated", "--invocation", "77", code=3).stdout
    assert "that belongs to its invocation 77" in " ".join(none.split())


def test_a_user_unit(world: World) -> None:
    """A unit of a user's own manager, asked for by name and found from its GPU."""
    text, tokens, _ = start_up(before=50.0, weights=20.0)
    place = "/home/ops/.config/systemd/user"
    path = world.put(FIRST, "mine.log", text)
    script = world.put(
        FIRST,
        "mine.sh",
        f'while IFS= read -r line; do printf "%s\\n" "$line"; done <{path}\n'
        "exec /run/lab/hog unit 1 700\n",
    )
    service = world.put(FIRST, "mine.service", f"[Service]\nExecStart=/bin/sh {script}\n")
    world.sh(f"mkdir -p {place}; cp {service} {place}/; chown -R ops /home/ops")
    world.sh("systemctl start user@1000")
    user = "XDG_RUNTIME_DIR=/run/user/1000 systemctl --user"
    done = world.lab.ssh(FIRST, f"{user} daemon-reload; {user} start mine", "ops")
    assert done.returncode == 0, done.stderr
    try:
        match = "journalctl -q _SYSTEMD_USER_UNIT=mine.service"
        world.wait("mine", lambda: "ready to roll" in world.sh(match))
        found = world.audit("--unit", "mine", "--user-unit-of", "ops")
        assert found[0]["status"] == "ready"
        assert found[0]["ranks"]["TP1"]["max_tokens"] == tokens
        world.wait("a GPU", lambda: "gpu=1" in world.sh("cat /run/nvml-sim/charges/*", check=False))
        sections = world.data("audit", "startup", "-H", FIRST)["hosts"][0]["startup"]
        by_unit = {one["unit"]: one for one in sections}
        assert by_unit["mine"]["invocations"][-1]["ranks"]["TP0"]["max_tokens"] == tokens
    finally:
        world.lab.ssh(FIRST, f"{user} stop mine", "ops")


def test_without_names_the_log_is_found_from_the_gpus_holders(world: World) -> None:
    """The unit of a holder, the file behind its stdout, and a hog that says nothing."""
    host = "gh200-02"
    text, tokens, _ = start_up(before=66.0)
    world.unit("holder", text, then="exec /run/lab/hog unit 0 900", host=host)
    world.restart("holder", host=host)
    file_text, file_tokens, _ = start_up(before=55.0, weights=20.0)
    path = world.put(host, "engine.txt", file_text)
    world.sh(f"cp {path} /var/log/engine.log", host)
    more = "StandardOutput=append:/var/log/engine.log"
    world.unit("filed", "", then="exec /run/lab/hog unit 1 800", host=host, more=more)
    world.sh("systemctl start filed", host)
    charged = "cat /run/nvml-sim/charges/* 2>/dev/null | wc -l"
    world.wait("two charges", lambda: int(world.sh(charged, host)) >= 2)
    sections = world.data("audit", "startup", "-H", host)["hosts"][0]["startup"]
    got = {one["unit"] or one["source"]: one["invocations"][-1] for one in sections}
    assert got["holder"]["ranks"]["TP0"]["max_tokens"] == tokens
    assert got["/var/log/engine.log"]["ranks"]["TP0"]["max_tokens"] == file_tokens
    hog = world.lab.hog(host, "unit", gpu=0, mib=100)
    assert len(hog.holders) == 1
    screen = world.run("audit", "startup", "-H", host).stdout
    assert "no engine's start-up in this log" in screen


def test_the_same_text_gives_the_same_answer_whatever_carries_it(world: World) -> None:
    """Through a real journal, docker's file, a pod's file and a packed file: equal invocations."""
    host = "gh200-02"
    outer = re.compile(r"^\S+ gpu-7 [\w.]+\[\d+\]: ")
    raw = FIXTURE.read_text("utf-8").splitlines()
    lines = [outer.sub("", line) for line in raw if " systemd[1]: " not in line]
    cut = next(at for at, line in enumerate(lines) if "2026-03-01" in line)
    expected = [bare(one.to_json()) for one in parse(lines).invocations]
    assert len(expected) == 2

    for part in (lines[:cut], lines[cut:]):
        world.unit("carried", "\n".join(part) + "\n", host=host)
        world.restart("carried", last=part[-1][:60], host=host)
    through = world.audit("--unit", "carried", host=host)
    assert [bare(one) for one in reversed(through)] == expected
    envelope = world.data("audit", "startup", "-H", host, "--unit", "carried")
    rules = [one["rule"] for one in envelope["findings"]]
    assert rules == ["startup/same-pool", "startup/capped-by"]  # nothing shrank, and why not more

    docker = "".join(
        json.dumps({"log": line + "\n", "stream": "stdout", "time": "2026-03-01T11:00:00.5Z"})
        + "\n"
        for line in lines
    )
    cri = "".join(f"2026-03-01T11:00:00.5Z stdout F {line}\n" for line in lines)
    ident = "ab" * 32
    there = f"/var/lib/docker/containers/{ident}"
    config = world.put(host, "config.v2.json", json.dumps({"Name": "/sglang"}))
    pod = "/var/log/pods/prod_kimi-0_5c1f2d6e-0000-4000-8000-000000000001/engine"
    files = {
        f"{there}/{ident}-json.log": docker,
        f"{pod}/0.log": cri,
        "/var/log/plain.log": "\n".join(lines[cut:]) + "\n",
        "/var/log/plain.log.1": "\n".join(lines[:cut]) + "\n",
    }
    for number, (path, text) in enumerate(files.items()):
        source = world.put(host, f"carried-{number}", text)
        world.sh(f"mkdir -p $(dirname {path}); cp {source} {path}", host)
    world.sh(f"cp {config} {there}/; gzip -f /var/log/plain.log.1", host)
    world.sh("touch -d yesterday /var/log/plain.log.1.gz", host)
    for words in (
        ("--container", "sglang"),
        ("--container", ident[:12]),
        ("--container", "prod/kimi-0"),
        ("--file", "/var/log/plain.log"),
    ):
        got = world.audit(*words, host=host)
        assert [bare(one) for one in reversed(got)] == expected, words


def bare(invocation: dict[str, Any]) -> dict[str, Any]:
    """An invocation without what only its carrier knows: ids and clocks; no exit was logged."""
    carrier = ("invocation_id", "started", "ended", "status", "current")
    return {name: value for name, value in invocation.items() if name not in carrier}


def test_a_start_that_lacked_memory_names_who_holds_it(world: World) -> None:
    """A process older than the failed start still has the GPU: one finding says so."""
    host = "gh200-03"
    hog = world.lab.hog(host, "orphan", gpu=1, mib=30_000)
    text = (
        "[2026-05-04 09:10:12 TP0] Load weight begin. avail mem=44.00 GB\n"
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
    )
    world.unit("starved", text, then="sleep 1; exit 1", host=host)
    world.restart("starved", last="increase --mem-fraction", host=host)
    ended = "systemctl is-failed starved"
    world.wait("starved failed", lambda: "failed" in world.sh(ended, host, check=False))
    envelope = world.data("audit", "startup", "-H", host, "--unit", "starved")
    found = [one for one in envelope["findings"] if one["rule"] == "startup/held-then"]
    assert len(found) == 1
    holders = found[0]["evidence"]["holders"]
    assert [(one["pid"], one["gpu"]) for one in holders] == [(hog.holders[0], 1)]
    screen = world.run("audit", "startup", "-H", host, "--unit", "starved").stdout
    assert "held-then" in screen
    assert f"fleetmem reclaim -H {host} --gpu 1 --dry-run" in screen


def test_lines_are_grepped_on_the_hosts_and_folded(world: World) -> None:
    """The same line of three hosts is one row; pids and times make no difference."""
    for number, host in enumerate(world.lab.hosts):
        text, _, _ = start_up()
        pid_line = f"[2026-05-04 09:10:0{number}] worker pid={4000 + number} lost 10.0.0.{number}\n"
        world.unit("folded", pid_line + text, host=host)
        world.restart("folded", host=host)
    hosts = "gh200-[01-03]"
    screen = world.run("logs", "-H", hosts, "-u", "folded", "-g", "worker PID|lost").stdout
    rows = [line for line in screen.splitlines() if "lost" in line]
    assert len(rows) == 1
    assert "gh200-[01-03]" in rows[0]
    assert rows[0].split()[0] == "3"
    case = world.run("logs", "-H", hosts, "-u", "folded", "-g", "Worker").stdout
    assert "worker" not in case  # an upper case letter means what it says
    raw = world.run("logs", "-H", hosts, "-u", "folded", "-g", "worker", "--raw", "-C", "1").stdout
    assert raw.count("lost") == 3
    rows_out = world.run("logs", "-H", hosts, "-u", "folded", "-g", "lost", "-o", "jsonl").stdout
    parsed = [json.loads(line) for line in rows_out.splitlines()]
    assert {one["host"] for one in parsed} == set(world.lab.hosts)
    assert all(one["message"].endswith(f"10.0.0.{n}") for n, one in enumerate(parsed))


def test_messages_are_byte_exact(world: World) -> None:
    """Not UTF-8, several lines, control characters, over 4096 bytes, and repeated fields."""
    long = "x" * 10_000
    script = (
        "import socket, struct\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        "def send(*fields):\n"
        "    out = b''\n"
        "    for name, value in fields:\n"
        "        out += name + b'\\n' + struct.pack('<Q', len(value)) + value + b'\\n'\n"
        "    s.sendto(out, '/run/systemd/journal/socket')\n"
        "t = (b'SYSLOG_IDENTIFIER', b'exact')\n"
        "send((b'MESSAGE', b'caf\\xe9 \\x1b[31m\\xff\\x00end'), t)\n"
        "send((b'MESSAGE', b'one\\n\\ntwo\\nthree=3'), t)\n"
        f"send((b'MESSAGE', b'{long}'), t)\n"
        "send((b'MESSAGE', b'first'), (b'MESSAGE', b'second'), t)\n"
        "import time; time.sleep(1000)\n"
    )
    path = world.put(FIRST, "exact.py", script)
    service = world.put(FIRST, "exact.service", f"[Service]\nExecStart=/usr/bin/python3 {path}\n")
    world.sh(f"cp {service} /etc/systemd/system/; systemctl daemon-reload; systemctl start exact")
    world.wait("exact", lambda: "second" in world.sh("journalctl -q -a -t exact -o export"))
    section = world.data("logs", "-H", FIRST, "-u", "exact")["hosts"][0]["logs"][0]
    rows = [row for row in section["lines"] if row["name"] == "exact"]
    import base64

    raw = [
        base64.b64decode(row["message_base64"])
        if "message_base64" in row
        else row["message"].encode()
        for row in reversed(rows)
    ]
    assert raw == [
        b"caf\xe9 \x1b[31m\xff\x00end",
        b"one\n\ntwo\nthree=3",
        long.encode(),
        b"first\nsecond",
    ]


def test_whoever_may_not_read_the_journal_is_told(world: World) -> None:
    text, _, _ = start_up()
    world.unit("private", text)
    world.restart("private")
    at = world.lab.hosts[FIRST]
    done = world.run("logs", "-H", f"guest@{at.address}:{at.port}", "-u", "private", code=None)
    assert "(group systemd-journal" in " ".join(done.stdout.split()), done.stdout + done.stderr


def test_a_unit_that_a_host_has_not_got(world: World) -> None:
    """Such a host has failed, for logs and audit alike; one that has the unit is ok, and one that
    has one of two units is partly read. The reason is said once."""
    world.unit("scarce", start_up()[0])
    world.restart("scarce")
    words = ("-H", "gh200-[01-02]", "-u")
    reason = "no journal entries for no-such-unit.service"
    for command in (("logs",), ("audit", "startup")):
        for unit in ("scarce", "no-such-unit"):
            done = world.run(*command, *words, unit, "-o", "json", code=3)
            rows = json.loads(done.stdout)["hosts"]
            ends = [(row["outcome"], row["error"] and row["error"]["code"]) for row in rows]
            first = ("ok", None) if unit == "scarce" else ("failed", "log_unreadable")
            assert ends == [first, ("failed", "log_unreadable")]
        screen = " ".join(world.run(*command, *words, "no-such-unit", code=3).stdout.split())
        assert screen.count(reason) == (1 if command == ("logs",) else 2), screen
        both = world.data(*command, "-H", FIRST, "-u", "scarce", "-u", "no-such-unit")["hosts"]
        assert (both[0]["outcome"], both[0]["error"]) == ("partial", None)
