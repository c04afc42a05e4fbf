"""The reclaim screen."""

from __future__ import annotations

import pytest

from fleetmem.controller.answer.envelope import Envelope, HostEntry
from fleetmem.controller.reclaim.options import ReclaimOptions
from fleetmem.controller.render.kit.line import cells, plain
from fleetmem.controller.render.reclaim.plan import plan_lines
from fleetmem.controller.render.reclaim.question import describe, plan_hashes
from fleetmem.controller.render.reclaim.reclaim import reclaim_lines
from fleetmem.controller.render.reclaim.step_table import step_lines
from fleetmem.controller.render.reclaim.verdict_text import text_of
from fleetmem.controller.render.reclaim.verdicts import verdict_lines
from tests.unit.reclaim.reclaim_samples import (
    MIB,
    eight_gpus,
    envelope,
    held,
    idle,
    rung,
    target,
    unreachable,
)

ONE_HOST = """\
PLAN 7f3c  gpu-srv-1 · 8 × RTX PRO 6000
GPU    USED MiB  HOLDER                        PID   AGE  OWNER                USER  CLASS
0-7  92 049-126  sglang::scheduler_TP[0-7]  8 pids  3h12  launcher 41190 dead  root  leftover
3             "  python3                     41377     –  fork of 41214        root  leftover
SPARED
0-7          12  dcgm-exporter 1893: a monitoring exporter                           protected
0-7           –  jupyter 22019 (bob): open files only, no memory                     in use
steps   drain → TERM 8 → KILL after 10 s → heirs 1 · expect 0.30 s after KILL

STEP    SIGNALLED     GONE  GPUS HELD  FREED GiB    TIME
drain           –        –          –          –       –  no live server
TERM            8      0/9        8/8          0  10.0 s  ignored
KILL            8      8/9        1/8      629.8  0.31 s
heirs           1      9/9        0/8       90.0  0.21 s

✓ reclaimed   gpu-srv-1: 719.4 GiB on 8 of 8 GPUs in 10.5 s; every GPU at baseline (0 MiB, assumed)
              9 stopped, 2 spared, 0 unknown · operation 7f3c, recorded here and on the host
  next   systemctl start sglang-kimi
         fleetmem reclaim -H gpu-srv-1 --gpu 3 --dry-run
"""


def shown(run: Envelope) -> str:
    """The whole screen as text."""
    return "".join(plain(line) + "\n" for line in reclaim_lines(run, ReclaimOptions()))


def test_one_host_exactly() -> None:
    """The screen that the product is known by."""
    assert shown(envelope(eight_gpus())) == ONE_HOST


def fleet() -> Envelope:
    """Twelve hosts that end in five ways."""
    return envelope(
        *(eight_gpus(f"gh200-{number:02d}") for number in (1, 2, 3, 9)),
        *(
            held(f"gh200-{number:02d}", f"{number}11 python3, {number}22 trainer")
            for number in (4, 5)
        ),
        *(idle(f"gh200-{number:02d}") for number in (6, 7, 8, 10, 11)),
        unreachable("gh200-12"),
    )


def test_several_hosts_are_folded_worst_first() -> None:
    """Equal hosts share a row, troubled ones stand above, the majority is last."""
    rows = [plain(line) for line in verdict_lines(fleet())]
    heads = [row.split()[:4] for row in rows if row[:1] in "✗–✓·!"]
    assert heads == [
        ["✗", "2", "gh200-[04-05]", "held_by"],
        ["–", "1", "gh200-12", "unreachable"],
        ["✓", "4", "gh200-[01-03,09]", "reclaimed"],
        ["·", "5", "gh200-[06-08,10-11]", "nothing_to_do"],
    ]
    assert "12 hosts: 2 held_by, 4 reclaimed, 5 nothing_to_do, 1 unreachable" in "\n".join(rows)


def test_reasons_for_nothing_to_do_name_their_hosts() -> None:
    """Each reason with the hosts that have it, the most common one last; none where all have it."""

    def because(host: str, *whys: str) -> HostEntry:
        entry = idle(host)
        row = entry["reclaim"]["gpus"][0]
        entry["reclaim"]["spared"] = []
        entry["reclaim"]["gpus"] = [
            {
                **row,
                "index": n,
                "why": why,
                "why_short": short(why),
                **({"after_bytes": 0} if why.startswith("at") else {}),
            }
            for n, why in enumerate(whys)
        ]
        return entry

    def short(why: str) -> str | None:
        return why.removesuffix(end) + ", --gpu stops it" if why.endswith(end) else None

    end = "; --gpu would stop it even if it is working"

    kept = "held by python3 {}: its launcher {} is alive"
    entries = [
        because("gh200-01", "at its baseline", "at its baseline"),
        because("gh200-02", kept.format(54, 53), "at its baseline"),
        because("gh200-03", kept.format(54, 53), "at its baseline"),
        because("gh200-04", "at its baseline"),
        because("gh200-05"),
    ]
    entries[4]["reclaim"]["advice"] = "No GPU 7 here."
    assert text_of(entries) == (
        "gh200-05: No GPU 7 here; "
        "gh200-[02-03]: 1.0 GiB held by python3 54: its launcher 53 is alive; "
        "gh200-[01,04]: at its baseline"
    )
    assert text_of(entries[:1]) == "at its baseline"
    more = [
        because("gh200-01", kept.format(54, 53) + end, "held by a 7: its unit a is live"),
        because("gh200-02", "held by b 8: launcher dead" + end, "held by c 9 and d 10" + end),
        *(because(f"gh200-{number:02d}", "at its baseline") for number in range(3, 9)),
    ]
    assert text_of(more) == (
        "gh200-01: 1.0 GiB held by python3 54: its launcher 53 is alive, --gpu stops it; "
        "gh200-01: 1.0 GiB held by a 7: its unit a is live; "
        "gh200-02: 1.0 GiB held by b 8: launcher dead, --gpu stops it; "
        "gh200-02: 1.0 GiB held by c 9 and d 10, --gpu stops it; "
        "gh200-[03-08]: at its baseline; --gpu also stops working processes"
    )
    assert text_of(more[:1]).count("; --gpu would stop it even if it is working") == 1
    screen = " ".join(" ".join(plain(line) for line in verdict_lines(envelope(*more))).split())
    assert "gh200-[03-08]: at its baseline" in screen
    assert text_of(entries[1:3]).endswith("alive")
    assert "baseline" not in text_of(entries[1:3])  # beside "held by" it reads as a contradiction
    shown = " ".join(" ".join(plain(line) for line in verdict_lines(envelope(*entries))).split())
    assert "gh200-[01,04]: at its baseline" in shown


def test_partial_readings_name_their_hosts() -> None:
    first, second = idle("a"), idle("b")
    for entry, why in ((first, "denied by kernel"), (second, "no such file")):
        entry["outcome"] = "partial"
        entry["readings"]["gpu.holders"] = {
            "outcome": "partial", "reason": why, "reading": None, "seconds": 0.1,
        }  # fmt: skip
    assert text_of([first, second]) == (
        "no leftover memory · partial: a: gpu.holders denied by kernel; b: gpu.holders no such file"
    )


def test_next_commands_are_whole_and_folded() -> None:
    """One command for all equal hosts, quoted for a shell, never cut."""
    rows = [plain(line) for line in verdict_lines(fleet())]
    assert any(
        row.endswith("fleetmem reclaim -H 'gh200-[06-08,10-11]' --gpu 0 --dry-run") for row in rows
    )


@pytest.mark.parametrize("width", [80, 90, 100])
def test_columns(width: int) -> None:
    """No line but a command to copy is wider than the screen."""
    hostile = eight_gpus("h" * 90)
    hostile["reclaim"]["targets"][0]["name"] = "模型" * 60
    hostile["reclaim"]["spared"][0]["why"] = "w" * 300
    hostile["reclaim"]["gpus"][0]["verdict"] = "held_by"
    hostile["reclaim"]["verdict"] = "held_by"
    hostile["reclaim"]["advice"] = "a long advice " * 40
    for run in (fleet(), envelope(eight_gpus()), envelope(hostile), envelope(hostile, idle("b"))):
        for line in reclaim_lines(run, ReclaimOptions(), width):
            assert cells(plain(line)) <= width or "-H hhhh" in plain(line)


def test_a_terminal_of_eighty_columns() -> None:
    """Columns are as wide as what is in them; nothing of it is lost."""
    entry = eight_gpus("gh200-01")
    rows = [plain(line) for line in plan_lines([entry, idle("b")], None, 80)][1:4]
    assert rows == [
        "HOSTS     GPU    USED MiB  HOLDER                  PID  OWNER          CLASS",
        "gh200-01  0-7  92 049-126  sglang::scheduler_T  8 pids  launcher       leftover",
        "                           P[0-7]                       41190 dead",
    ]


def test_remote_text_is_escaped_everywhere() -> None:
    """A host cannot reach the terminal through any field."""
    evil = "\x1b[31m\u202e"
    entry = held("a", evil)
    section = entry["reclaim"]
    section["advice"] = section["next"][0] = evil
    section["targets"] = [
        target(7, evil, [0], why=evil),
        target(8, evil, [1], unit=evil),
    ]
    for row in section["spared"]:
        row["name"] = row["why"] = row["user"] = evil
    section["rungs"][0]["why"] = evil
    entry["readings"]["gpu.devices"]["reading"]["gpus"][0]["name"] = evil
    assert section["plan"] is not None
    section["plan"]["id"] = section["plan"]["hash"] = evil
    lost = unreachable(evil)
    assert lost["error"] is not None
    lost["error"]["message"] = evil
    lost["error"]["hint"] = evil
    for run in (envelope(entry), envelope(entry, lost), envelope(lost)):
        text = shown(run) + "".join(plan_hashes(run["hosts"]))
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "\\x1b[31m\\u202e" in text


def test_memory_is_told_once_a_gpu() -> None:
    """Where only the GPU's use is known, it stands in the first row that names the GPU."""
    entry = eight_gpus()
    entry["reclaim"]["targets"] = [target(5, "worker", [0]), target(6, "python3", [0])]
    rows = [plain(line) for line in plan_lines([entry], None)][2:4]
    assert "92 049" in rows[0]
    assert '"' in rows[1]
    assert "92 049" not in rows[1]


def test_absent_is_never_zero() -> None:
    """What nobody could read is a dash."""
    entry = eight_gpus()
    for one in entry["reclaim"]["gpus"]:
        one["before_bytes"] = None
    entry["reclaim"]["targets"] = [target(5, "worker", [0])]
    row = plain(plan_lines([entry], None)[2])
    assert row.split() == ["0", "–", "worker", "5", "–", "root", "root", "leftover"]


def test_a_plan_says_that_nothing_was_changed_only_while_that_is_so() -> None:
    """A recorded run that climbed does not claim it."""
    entry = eight_gpus()
    assert "nothing has been changed" not in plain(plan_lines([entry], None)[0])
    entry["reclaim"]["rungs"] = []
    assert plain(plan_lines([entry], None)[0]).endswith("· nothing has been changed")


def test_an_error_outweighs_the_plan() -> None:
    """A host that was planned and then locked by another desk is no plan any more."""
    entry = eight_gpus()
    entry["reclaim"]["verdict"] = "planned"
    entry["outcome"] = "failed"
    entry["error"] = {"code": "locked", "message": "another run holds it", "hint": None}
    text = plain(verdict_lines(envelope(entry))[0])
    assert text == "✗ failed      gpu-srv-1: locked: another run holds it"


def test_a_rung_that_was_refused() -> None:
    """A refusal is said with its reason."""
    refused = rung("drain", "refused", 0.5, [], why="3 requests are running")
    text = plain(step_lines(refused)[0])
    assert text.endswith("! refused: 3 requests are running")


def test_mixed_classes_in_the_question() -> None:
    """The question says what kinds of processes it is about."""
    first, second = eight_gpus("a"), eight_gpus("b")
    assert describe([first]) == ("9 leftover processes", 1)
    second["reclaim"]["targets"] = [{**target(5, "x", [0]), "class": "in_use"}]
    assert describe([first, second, idle("c")]) == ("10 processes (1 in use, 9 leftover)", 2)


def test_ranges_of_sizes() -> None:
    """Sizes share their thousands where they can."""
    from fleetmem.controller.text.sizes import age, mib_span, seconds

    assert mib_span([92049 * MIB, 92137 * MIB, None]) == "92 049-137"
    assert mib_span([0, 12 * MIB]) == "0-12"
    assert mib_span([80 * MIB, 142137 * MIB]) == "80-142 137"
    assert mib_span([10049 * MIB, 142137 * MIB]) == "10049-142137"
    assert mib_span([None]) == "–"
    assert [age(value) for value in (5, 720, 11532, 200000, None)] == [
        "5s",
        "12m",
        "3h12",
        "2d07",
        "–",
    ]
    assert [seconds(value) for value in (0.31, 10.6, 123.4, None)] == [
        "0.31 s",
        "10.6 s",
        "123 s",
        "–",
    ]
