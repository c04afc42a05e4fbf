"""``audit startup`` at the shell: saved logs, the fold over many, mistakes in one line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from fleetmem.controller.answer.envelope import Envelope, new_envelope, new_host, new_run
from fleetmem.controller.cli import main
from fleetmem.controller.errors import LogUnreadable
from fleetmem.controller.render.audit.audit import audit_lines
from fleetmem.controller.render.kit.line import plain
from tests.systemd.world import start_up


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


def save(folder: Path, name: str, text: str) -> str:
    place = folder / f"{name}.log"
    place.write_text(text)
    return str(place)


def words(paths: list[str]) -> list[str]:
    return [word for path in paths for word in ("--log", path)]


def test_sixteen_hosts_with_one_odd_in_one_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """15 equal, 1 odd, and why: another process held memory when the engine measured."""
    paths = []
    for number in range(1, 17):
        text, tokens, _ = start_up(before=77.0 if number != 11 else 66.0, ranks=8)
        paths.append(save(tmp_path, f"gpu-{number:02d}", text))
    assert main(["audit", "startup", *words(paths)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) <= 24
    assert all(len(line) <= 100 for line in out[:-1])
    assert out[0].startswith("16 logs: 16 ok")
    odd = next(line for line in out if "kv-below-group" in line)
    assert odd.split()[:3] == ["✗", "1", "gpu-11.log"]
    evidence = " ".join(" ".join(out).split())
    assert "another process held 11.00 GiB" in evidence
    at = next(number for number, line in enumerate(out) if line.startswith("✓"))
    assert out[at].split()[:3] == ["✓", "15", "gpu-[01-10,12-16].log"]
    assert f"KV 29.30 ±0.00 GiB a rank · {tokens:,}".replace(",", " ") in evidence
    assert "15 equal" in evidence


def test_every_target_is_in_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, _, _ = start_up()
    paths = [save(tmp_path, f"h{n}", text) for n in range(2)]
    paths += [save(tmp_path, "empty", "nothing here\n"), str(tmp_path / "none.log")]
    assert main(["audit", "startup", *words(paths)]) == 3
    out = capsys.readouterr().out
    for name in ("h[0-1].log", "empty.log", "none.log"):
        assert name in out.replace("\n", " ")
    assert "log_unreadable" in out


def test_one_log_is_shown_whole_and_as_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, tokens, pool = start_up()
    path = save(tmp_path, "one", text + text.replace("TP1", "TP9"))
    assert main(["audit", "startup", "--log", path, "--lines"]) == 0
    screen = capsys.readouterr().out
    assert "PER RANK" in screen
    assert "LINES" in screen
    assert main(["audit", "startup", "--log", path, "-o", "json", "--lines"]) == 0
    envelope = json.loads(capsys.readouterr().out)
    assert envelope["targeted"] == ["file:one.log"]
    newest = envelope["hosts"][0]["startup"][0]["invocations"][-1]
    assert newest["ranks"]["TP0"]["max_tokens"] == tokens
    assert newest["lines"]
    assert main(["audit", "startup", "--log", path, "-o", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["rank"] for row in rows} == {"TP0", "TP1", "TP9"}
    assert float(rows[0]["kv_cache_bytes"]) == pytest.approx(pool * 2**30, rel=0.01)


def test_fail_on_counts_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path, "one", start_up()[0])
    assert main(["audit", "startup", "--log", path, "--fail-on", "critical"]) == 0
    assert main(["audit", "startup", "--log", path, "--fail-on", "warn"]) == 5
    capsys.readouterr()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["audit", "startup", "--log", "x", "-H", "h"], "give one of them"),
        (["audit", "startup", "--log", "x", "--unit", "u"], "--unit, --file and --container"),
        (["audit", "startup", "--log", "-", "--log", "-"], "given only once"),
        (["audit", "startup", "--log", "x", "--engine", "nope"], "unknown --engine"),
        (["audit", "memory", "--log", "x"], "only the startup playbook"),
        (["audit", "startup", "memory", "--log", "x"], "needs hosts"),
        (["audit"], "Missing argument"),
        (["audit", "startup", "--invocation", "newest", "-H", "h"], "is not a start"),
        (["logs", "-H", "h", "-g", "("], "is not a valid regex"),
        (["logs", "-H", "h", "-n", "0"], "not in the range"),
        (["logs", "-H", "h", "--file", "f", "--boot", "0"], "--boot needs --unit"),
        (["logs", "-H", "h", "--container", "c", "--boot", "0"], "--boot needs --unit"),
        (["logs", "-H", "h", "--file", "f", "--invocation", "1"], "--invocation needs --unit"),
        (["audit", "startup", "--log", "x", "--invocation", "1"], "--invocation needs a journal"),
    ],
)
def test_mistakes_are_one_line(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(given) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.splitlines()[0].startswith("fleetmem: ")
    assert len([line for line in printed.err.splitlines() if line.startswith("fleetmem: ")]) == 1


def missing_log(*hosts: str) -> Envelope:
    """Hosts without the log that was asked for, and what another playbook found on the first."""
    reason = "the journal has no line of nope.service"
    entries = []
    for host in hosts:
        entry = new_host(host, "failed", LogUnreadable(reason).to_json())
        entry["readings"]["journal.read"] = {
            "outcome": "failed", "reason": reason, "reading": None, "seconds": 0.1,
        }  # fmt: skip
        entry["startup"] = []
        entries.append(entry)
    envelope = new_envelope(new_run("audit"), list(hosts), entries)
    envelope["findings"] = [
        {
            "rule": "memory/swap",
            "severity": "warn",
            "hosts": hosts[0],
            "subject": "swap",
            "evidence": {"say": "2 GiB are in swap"},
            "advice": None,
            "next": [],
        }
    ]
    return envelope


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_missing_log_is_said_once_beside_what_others_found(number: int) -> None:
    hosts = [f"gpu-{n}" for n in range(1, number + 1)]
    lines = [plain(line) for line in audit_lines(missing_log(*hosts))]
    text = " ".join(" ".join(lines).split())
    assert text.count("no line of nope.service") == (1 if number == 3 else number), text
    assert text.count("2 GiB are in swap") == 1


def test_what_others_found_is_shown_where_no_start_was_found() -> None:
    envelope = missing_log("gpu-1")
    envelope["hosts"][0]["error"] = None
    text = " ".join(plain(line) for line in audit_lines(envelope))
    assert "no line of nope.service" in text
    assert "2 GiB are in swap" in text


def test_a_log_without_a_start_says_what_to_try() -> None:
    whole = new_envelope(new_run("audit"), ["file:a.log"], [new_host("file:a.log", "ok")])
    whole["hosts"][0]["startup"] = []
    text = [plain(line) for line in audit_lines(whole)]
    assert text[0] == "file:a.log  no start-up of a known engine was found"
    assert text[1].startswith("  name the engine with --engine")
