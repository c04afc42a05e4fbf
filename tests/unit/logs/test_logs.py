"""Lines from a host are data: checked, put in order, folded, never believed."""

from __future__ import annotations

from typing import Any

import pytest

from fleetmem.controller.answer.envelope import finish, new_envelope, new_host, new_run
from fleetmem.controller.cli import main
from fleetmem.controller.logs.over_hosts import nothing_found, nothing_read
from fleetmem.controller.logs.reading import Log, LogLine, records, rows_of
from fleetmem.controller.logs.run import section
from fleetmem.controller.logs.sources import Sources
from fleetmem.controller.render.kit.line import WIDTH, plain
from fleetmem.controller.render.logs.logs import Shown, log_lines, log_rows, troubles
from fleetmem.controller.render.logs.normal import normal

ROW = [1_777_856_523_000_000, 0, 77, "python3", 6, 0, 1, "hello"]


@pytest.mark.parametrize(
    "chunk",
    [
        None, {}, {"rows": 5}, {"rows": [[]]}, {"rows": [ROW[:-1]]},
        {"rows": [[-1, *ROW[1:]]]}, {"rows": [[True, *ROW[1:]]]}, {"rows": [[1 << 70, *ROW[1:]]]},
        {"rows": [[*ROW[:5], 9, 1, "x"]]}, {"rows": [[*ROW[:7], b"x"]]},
        {"rows": [[*ROW[:3], 5, *ROW[4:]]]}, {"rows": [[*ROW[:7], "\ud800"]]},
    ],
)  # fmt: skip
def test_rows_that_are_none(chunk: Any) -> None:
    with pytest.raises(ValueError, match=r"chunk|row|number|name|message|length"):
        list(rows_of(chunk))


def test_a_row_keeps_its_bytes() -> None:
    (line,) = rows_of({"rows": [[*ROW[:7], "caf\udce9"]]})
    assert line.raw == b"caf\xe9"
    assert line.text == "caf�"
    assert line.time == "2026-05-04T01:02:03Z"
    (odd,) = rows_of({"rows": [[1 << 62, *ROW[1:]]]})
    assert odd.time is None


def log(*lines: LogLine, unit: str = "u.service") -> Log:
    spans = [
        {"id": "b" * 32, "unit": unit, "age": 0, "first_us": 20_000_000, "last_us": 30_000_000,
         "entries": 2},
        {"id": "a" * 32, "unit": unit, "age": 1, "first_us": 1_000_000, "last_us": 2_000_000,
         "entries": 2},
    ]  # fmt: skip
    reading: Any = {"invocations": spans, "units": [unit], "files": [], "truncated": None}
    return Log(
        {"unit": "u"},
        {"outcome": "ok", "reason": None, "reading": reading, "seconds": 0.1},
        list(lines),
    )


def line(
    micro: int, message: str, number: int | None = None, kind: int = 0, pid: int = 7
) -> LogLine:
    return LogLine(micro, number, pid, None, 6, kind, True, message)


def test_kernel_lines_go_to_the_start_whose_process_they_name() -> None:
    killed = "oom-kill:constraint=X,task_memcg=/system.slice/u.service,task=p,pid=8,uid=0"
    read = log(
        line(25_000_000, "new", 0),
        line(2_500_000, "Memory cgroup out of memory: Killed process 8 (p)", kind=2, pid=0),
        line(2_400_000, killed, kind=2, pid=0),
        line(2_300_000, "Out of memory: Killed process 555 (other)", kind=2, pid=0),
        line(15_000_000, "Out of memory: Killed process 7 (between)", kind=2, pid=0),
        line(1_500_000, "old", 1),
    )
    got = [(bytes(one.message)[:8], (one.invocation or "")[:1]) for one in records(read)]  # type: ignore[arg-type]
    assert [text for text, _ in got] == [b"old", b"oom-kill", b"Memory c", b"new"]
    assert [which for _, which in got] == ["a", "a", "a", "b"]


def test_without_kernel_lines_the_journals_order_stays() -> None:
    read = log(line(25, "2nd", 0), line(26, "1st", 0))
    assert [one.message for one in records(read)] == [b"1st", b"2nd"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2026-05-04 09:10:11 x pid=12", "2026-05-05T10:11:12.5Z x pid=9876"),
        ("python3[123]: lost 10.0.0.1:30000", "python3[4]: lost 10.9.8.7:1"),
        ("at 0x7f0012345678 id deadbeefdeadbeef", "at 0x55aa id 0123456789abcdef"),
        ("INFO 05-04 09:10:11 process 17", "INFO 06-01 00:00:00 process 4711"),
    ],
)
def test_lines_that_differ_in_times_pids_and_addresses_are_equal(one: str, other: str) -> None:
    assert normal(one) == normal(other)


def test_figures_are_no_such_numbers() -> None:
    assert normal("KV size: 10.42 GB") != normal("KV size: 0.63 GB")
    assert normal("TP0 #tokens: 159277") != normal("TP0 #tokens: 9626")


def test_equal_lines_of_many_hosts_are_one_row_and_troubles_are_folded() -> None:
    entries = []
    for number in range(1, 6):
        entry = new_host(f"gpu-{number}", "ok")
        read = log(line(25_000_000 + number, f"worker pid={number} died", 0))
        entry["logs"] = [section(read)]  # type: ignore[typeddict-unknown-key]
        entries.append(entry)
    for number in (6, 7):
        entries.append(new_host(f"gpu-{number}", "unreachable"))
        entries[-1]["error"] = {"code": "connect_timeout", "message": "after 5 s", "hint": None}
    envelope = new_envelope(new_run("logs"), [one["host"] for one in entries], entries)
    text = [plain(one) for one in log_lines(envelope, Shown())]
    assert text[1].split() == ["5", "gpu-[1-5]", "01-01", "00:00:25", "worker", "pid=5", "died"]
    assert any("gpu-[6-7]" in row and "connect_timeout" in row for row in text)
    rows = log_rows(envelope)
    assert [row["host"] for row in rows] == [f"gpu-{n}" for n in range(1, 6)]
    assert rows[0]["invocation"] == "b" * 32
    raw = [plain(one) for one in log_lines(envelope, Shown(raw=True))]
    assert sum("died" in row for row in raw) == 5


def test_remote_text_is_harmless_on_the_screen() -> None:
    entry = new_host("gpu-1", "ok")
    entry["logs"] = [section(log(line(1, "a\x1b[2Jb\r\u202e", 0)))]  # type: ignore[typeddict-unknown-key]
    envelope = new_envelope(new_run("logs"), ["gpu-1"], [entry])
    for raw in (True, False):
        text = "".join(plain(one) for one in log_lines(envelope, Shown(raw=raw)))
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "\\x1b[2Jb" in text


def test_sources_become_calls() -> None:
    wanted = Sources(units=("a", "b"), files=("/x",), invocation="1", user="ops", since="-2h")
    assert wanted.calls() == [
        {"unit": "a", "user": "ops", "invocation": "1", "since": "-2h"},
        {"unit": "b", "user": "ops", "invocation": "1", "since": "-2h"},
        {"file": "/x", "since": "-2h"},
    ]
    assert Sources(directory="/j", invocation="0").calls() == [{"directory": "/j"}]
    found = {"kind": "user_unit", "name": "v.service", "user": "1000"}
    assert Sources().of(found) == {"unit": "v.service", "user": "1000"}
    assert Sources().of({"kind": "container", "name": "abc", "user": None}) == {"container": "abc"}


class _Fleet:
    """One host whose log could not be read."""

    hosts = ()

    async def logs(self, options: Any, on_event: Any) -> Any:
        entry = new_host("gh200-01", "partial")
        entry["readings"]["journal.read"] = {
            "outcome": "timed_out", "reason": "no answer in 14 s", "reading": None, "seconds": 14.0,
        }  # fmt: skip
        return finish(new_envelope(new_run("logs"), ["gh200-01"], [entry]), 0)


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_rows_that_are_missing_are_told_beside_them(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log without a line and one that could not be read are not the same to a script."""
    monkeypatch.setattr("fleetmem.controller.cli.kit.invoke.load_fleet", lambda common: _Fleet())
    assert main(["logs", "-H", "gh200-01", "-u", "kimi", "-o", form, "-q"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "! gh200-01  journal.read: timed_out: no answer in 14 s\n"


def test_a_long_trouble_goes_on_below_its_beginning() -> None:
    entry = new_host("gh200-01", "partial")
    reason = "word " * 40
    entry["readings"]["engine.find"] = {
        "outcome": "partial", "reason": reason, "reading": None, "seconds": 0.1,
    }  # fmt: skip
    first, *more = [plain(line) for line in troubles([entry])]
    assert first.startswith("! gh200-01  engine.find: partial: word")
    assert more
    assert all(line.startswith("  word") and len(line) <= WIDTH for line in more)


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        ("lines", "! h1  u: older lines were omitted: -n sets how many are shown"),
        ("time", "! h1  u: older lines were omitted: time limit reached; see --timeout"),
    ],
)
def test_lines_that_were_left_out_name_the_option(cut: str, said: str) -> None:
    entry = new_host("h1", "ok")
    entry["logs"] = [{"name": "u", "truncated": cut}]
    assert [plain(line) for line in troubles([entry])] == [said]


def test_a_holder_without_a_log_has_its_whole_name() -> None:
    """The kernel's name ends after 15 characters, its title goes on."""
    row = {"pid": 9, "comm": "VLLM::EngineCor", "title": "VLLM::EngineCore", "why": "no output"}
    found: Any = {"sources": [], "unplaced": [row], "denied": 0}
    assert nothing_found(found).startswith("VLLM::EngineCore 9 holds a GPU, but no output; ")


def _read(outcome: str, reason: str | None = None) -> Any:
    return {"outcome": outcome, "reason": reason, "reading": None, "seconds": 0.1}


def test_a_host_without_any_of_the_logs_has_failed_and_says_so_once() -> None:
    """Several reasons are one error; what is no log does not count."""
    entry = new_host("gh200-01", "failed")
    entry["readings"] = {
        "host.facts": _read("ok"),
        "journal.read": _read("failed", "there is no file /nope on this host"),
        "journal.read:/secret": _read("denied", "/secret may not be read here"),
    }
    error = nothing_read(entry["readings"])
    assert error is not None
    entry["error"] = error.to_json()
    assert (error.code, error.exit_code, error.outcome) == ("log_unreadable", 3, "failed")
    said = " ".join(" ".join(plain(line) for line in troubles([entry])).split())
    for reason in ("there is no file /nope on this host", "/secret may not be read here"):
        assert said.count(reason) == 1


@pytest.mark.parametrize("other", ["ok", "partial", "timed_out"])
def test_a_host_with_one_of_the_logs_has_not_failed(other: str) -> None:
    rows = {"journal.read": _read("failed", "no"), "journal.read:b": _read(other, "part")}
    assert nothing_read(rows) is None


def test_a_host_that_was_asked_for_no_log_has_not_failed() -> None:
    assert nothing_read({"engine.find": _read("failed", "no")}) is None
