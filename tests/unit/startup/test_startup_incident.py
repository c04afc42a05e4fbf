"""The incident: two pools of one start look like one that shrank; and two starts that did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleetmem.controller.render.kit.line import WIDTH, cells, plain
from fleetmem.controller.render.startup.startup import startup_lines
from fleetmem.controller.startup.judge.diagnose import judge
from fleetmem.controller.startup.judge.levers import levers
from fleetmem.controller.startup.read.parse import parse
from fleetmem.controller.startup.starts import Startup

GIB = 2**30
HERE = Path(__file__).parent / "startup_fixtures"


def _read(name: str) -> Startup:
    return parse((HERE / name).read_text().splitlines(), unit="sglang-kimi")


def _findings(name: str) -> dict[str, dict[str, Any]]:
    return {one["rule"]: one for one in judge(_read(name), "gpu-7")}


def test_two_invocations_newest_last() -> None:
    startup = _read("incident.log")
    assert [(one.status, one.age, len(one.ranks)) for one in startup.invocations] == [
        ("stopped", 1, 8),
        ("ready", 0, 8),
    ]
    newest = startup.newest
    assert newest is not None
    assert newest.started == "2026-03-01T11:50:30+0000"
    assert list(newest.ranks) == [f"TP{n}" for n in range(8)]


def test_the_budget_of_every_rank() -> None:
    newest = _read("incident.log").newest
    assert newest is not None
    for values in newest.ranks.values():
        shown = {
            name: round(values[f"{name}_bytes"] / GIB, 2)
            for name in (
                "avail_before_load", "weights", "available_after_load", "kv_cache",
                "draft_weights", "draft_kv_cache", "graph", "available_final", "unaccounted",
            )
        }  # fmt: skip
        assert shown == {
            "avail_before_load": 94.04, "weights": 72.33, "available_after_load": 21.71,
            "kv_cache": 10.42, "draft_weights": 0.95, "draft_kv_cache": 0.6, "graph": 1.35,
            "available_final": 7.94, "unaccounted": 0.45,
        }  # fmt: skip
        assert (values["max_tokens"], values["draft_max_tokens"]) == (159277, 159277)


def test_nothing_shrank() -> None:
    """The two pool lines are the target's and the draft's, of one start."""
    found = list(judge(_read("incident.log"), "gpu-7"))
    assert [one["rule"] for one in found] == ["startup/same-pool", "startup/capped-by"]
    evidence = found[0]["evidence"]
    assert evidence["say"].startswith("Nothing shrank.")
    assert evidence["token_bytes"] == 61 * 576 * 2
    assert evidence["draft_token_bytes"] == 4096
    assert "KV size: 10.42 GB" in evidence["say"]
    assert "K size: 0.30 GB, V size: 0.30 GB" in evidence["say"]
    texts = [line["text"] for line in evidence["lines"]]
    assert any("KV size: 10.42 GB" in text for text in texts)
    assert {line["rank"] for line in evidence["lines"]} == {evidence["rank"]}


def test_the_misreadings_are_named() -> None:
    """Two pools read as one look like -94 %, and the first match is of the old start."""
    evidence = _findings("incident.log")["startup/same-pool"]["evidence"]
    assert round(evidence["misread_percent"]) == -94
    assert evidence["first_match"]["time"].startswith("2026-02-28")
    assert "The first match in the log is of the start of 2026-02-28T19:50:30" in evidence["say"]


def test_what_capped_the_pool() -> None:
    """A share of memory free before load, not of the rest."""
    evidence = _findings("incident.log")["startup/capped-by"]["evidence"]
    assert evidence["cause"] == "mem_fraction_static"
    assert evidence["closes"] is True
    assert round(evidence["expected_bytes"] / GIB, 2) == 10.43
    assert round(evidence["printed_bytes"] / GIB, 2) == 10.42
    assert round(evidence["naive_bytes"] / GIB, 1) == 19.1


def test_first_matches_would_show_the_old_run() -> None:
    """``grep | head -20`` ends before the newest start; the answer does not rest on it."""
    text = (HERE / "incident.log").read_text().splitlines()
    grep = [line for line in text if "mem" in line][:20]
    assert all(line.startswith("2026-02-28") for line in grep)
    newest = _read("incident.log").newest
    assert newest is not None
    assert all((line.time or "").startswith("2026-03-01") for line in newest.lines)


def test_levers_with_their_numbers() -> None:
    newest = _read("incident.log").newest
    assert newest is not None
    found = levers(newest, round(5.62 * GIB), 396 * 10**9)
    fraction, narrow, host = found
    assert fraction["change"] == "mem-fraction 0.90"
    assert round(fraction["pool_bytes"] / GIB, 2) == 12.31
    assert (fraction["tokens"], fraction["percent"]) == (188033, 18)
    assert round(fraction["free_bytes"] / GIB, 1) == 3.6
    assert (narrow["tokens"], narrow["percent"]) == (318554, 100)
    assert host["tokens"] == 637108
    assert round(host["host_bytes"] / 1e9) == 358


def test_no_lever_where_the_budget_does_not_close() -> None:
    text = (HERE / "incident.log").read_text()
    broken = text.replace("KV size: 10.42 GB", "KV size: 4.42 GB").splitlines()
    newest = parse(broken).newest
    assert newest is not None
    assert levers(newest) == []


def test_a_foreign_process_is_the_headline() -> None:
    found = judge(_read("foreign.log"), "gpu-7")
    first = found[0]
    assert (first["rule"], first["severity"]) == ("startup/pool-shrank", "critical")
    evidence = first["evidence"]
    assert evidence["cause"] == "foreign_process"
    assert round(evidence["change_percent"]) == -94
    assert round(evidence["foreign_bytes"] / GIB, 2) == 11.13
    assert "avail mem=82.91 GB" in evidence["lines"][0]["text"]
    assert first["advice"].startswith("Free that GPU first")
    assert first["next"] == ["fleetmem snapshot -H gpu-7", "fleetmem reclaim -H gpu-7 --dry-run"]
    assert judge(_read("foreign.log"), "file:foreign.log")[0]["next"] == []


def test_one_rank_sizes_all() -> None:
    """The foreign process is on one GPU only: every pool is as small."""
    found = _findings("foreign_one_rank.log")
    shrank = found["startup/pool-shrank"]["evidence"]
    assert (shrank["cause"], shrank["cause_rank"]) == ("foreign_process", "TP5")
    assert shrank["lines"][0]["rank"] == "TP5"
    assert found["startup/capped-by"]["evidence"]["cause"] == "other_rank"
    assert found["startup/ranks-differ"]["evidence"]["rank"] == "TP5"


def test_an_argument_is_the_headline() -> None:
    found = judge(_read("max_total_tokens.log"), "gpu-7")
    evidence = found[0]["evidence"]
    assert found[0]["rule"] == "startup/pool-shrank"
    assert evidence["cause"] == "max_total_tokens"
    assert evidence["asked_tokens"] == 10240
    assert abs(evidence["possible_tokens"] - 159277) < 50
    assert "max_total_tokens" in found[0]["advice"]
    assert "max_total_tokens=10240" in evidence["lines"][0]["text"]


@pytest.mark.parametrize(
    "name", ["incident.log", "foreign.log", "foreign_one_rank.log", "max_total_tokens.log"]
)
def test_the_screen_keeps_its_width(name: str) -> None:
    startup = _read(name)
    found = judge(startup, "gpu-7")
    lines = startup_lines("gpu-7", startup.to_json(lines=True), found, free_now_bytes=5 * GIB)
    for line in lines:
        assert cells(plain(line)) <= WIDTH, plain(line)
    shown = startup_lines("gpu-7", startup.to_json(lines=True), found, evidence=True)
    text = "\n".join(plain(line) for line in shown)
    assert "Load weight begin. avail mem=" in text


def test_the_screen_says_it() -> None:
    startup = _read("incident.log")
    lines = startup_lines("gpu-7", startup.to_json(), judge(startup, "gpu-7"))
    text = "\n".join(plain(line) for line in lines)
    for part in (
        "TP[0-7], 8 ranks equal",
        "target KV pool          -10.42  ██",
        "159 277 tokens",
        "unaccounted              -0.45",
        "(ordinary 0.5-1.8)",
        "✓ same-pool    Nothing shrank.",
        "! capped-by    mem-fraction-static 0.88",
        "fleetmem audit startup -H gpu-7 --unit sglang-kimi --lines",
    ):
        assert part in text, part
    shrunk = _read("foreign.log")
    text = "\n".join(
        plain(line) for line in startup_lines("gpu-7", shrunk.to_json(), judge(shrunk, "gpu-7"))
    )
    assert text.index("✗ pool-shrank") < text.index("! capped-by")
    assert "-94 %" in text


def test_ranks_that_differ_have_their_own_column() -> None:
    startup = _read("foreign_one_rank.log")
    lines = startup_lines("gpu-7", startup.to_json(), judge(startup, "gpu-7"))
    head = next(plain(line) for line in lines if plain(line).startswith("PER RANK"))
    assert head.split()[2:4] == ["TP5", "TP[0-4,6-7]"]
