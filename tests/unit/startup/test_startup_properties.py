"""However the text arrives, the answer is the same; whatever arrives, there is an answer."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fleetmem.controller.render.startup.startup import startup_lines
from fleetmem.controller.startup.judge.diagnose import judge
from fleetmem.controller.startup.read.parse import Parser, parse
from fleetmem.controller.startup.read.patterns import builtin
from fleetmem.controller.startup.starts import Record

HERE = Path(__file__).parent / "startup_fixtures"
TEXT = (HERE / "foreign_one_rank.log").read_text()
SLOW = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))


def _answer(data: bytes, cuts: list[int] | None = None) -> list[dict[str, Any]]:
    parser = Parser()
    last = 0
    for cut in sorted(cuts or []):
        parser.feed(data[last:cut])
        last = cut
    parser.feed(data[last:])
    return [one.to_json() for one in parser.finish().invocations]


WHOLE = _answer(TEXT.encode())


@SLOW
@given(st.lists(st.integers(0, len(TEXT)), max_size=60))
def test_any_split_into_reads(cuts: list[int]) -> None:
    assert _answer(TEXT.encode(), cuts) == WHOLE


def test_one_byte_at_a_time() -> None:
    parser = Parser()
    for byte in TEXT.encode():
        parser.feed(bytes((byte,)))
    assert [one.to_json() for one in parser.finish().invocations] == WHOLE


def _rank(line: str) -> str | None:
    at = line.find(" TP")
    return line[at + 1 : at + 4] if 0 < at < 100 else None


@SLOW
@given(st.randoms(use_true_random=False))
def test_any_interleaving_of_ranks(rng: random.Random) -> None:
    """Between two lines without a rank, each rank keeps its own order and nothing else."""
    out: list[str] = []
    group: dict[str, list[str]] = {}

    def flush() -> None:
        while group:
            key = rng.choice(sorted(group))
            out.append(group[key].pop(0))
            if not group[key]:
                del group[key]

    for line in TEXT.splitlines():
        rank = _rank(line)
        if rank is None:
            flush()
            out.append(line)
        else:
            group.setdefault(rank, []).append(line)
    flush()
    got = _answer("\n".join(out).encode())
    assert [one["ranks"] for one in got] == [one["ranks"] for one in WHOLE]
    assert [one["status"] for one in got] == [one["status"] for one in WHOLE]


def test_line_ends() -> None:
    assert _answer(TEXT.replace("\n", "\r\n").encode()) == WHOLE
    assert _answer(TEXT.rstrip("\n").encode()) == WHOLE
    assert _answer(TEXT.replace("\n", "\r").encode()) == WHOLE


@SLOW
@given(st.data())
def test_colours_anywhere(data: st.DataObject) -> None:
    """Escape sequences between any two characters change nothing."""
    text = TEXT
    for _ in range(data.draw(st.integers(1, 40))):
        at = data.draw(st.integers(0, len(text)))
        if "\x1b" in text[max(0, at - 12) : at + 12]:
            continue
        code = data.draw(st.sampled_from(["\x1b[0m", "\x1b[1;36m", "\x1b[38;5;208m", "\x1b[K"]))
        text = text[:at] + code + text[at:]
    assert _answer(text.encode()) == WHOLE


@SLOW
@given(st.integers(0, len(TEXT)))
def test_a_truncated_end_invents_nothing(cut: int) -> None:
    """What a cut log gives is what the whole gives, figure by figure, or nothing."""
    got = _answer(TEXT[:cut].encode())
    derived = ("unaccounted", "available_final", "avail_after", "max_tokens", "graph")
    for one, whole in zip(got, WHOLE, strict=False):
        for rank, values in one["ranks"].items():
            for name, value in values.items():
                if name.endswith("_bytes") and not name.startswith(derived):
                    assert value == whole["ranks"][rank][name], name


@pytest.mark.parametrize("place", ["front", "back", "both"])
def test_five_megabytes_in_one_line(place: str) -> None:
    line = "[2026-03-01 11:51:48 TP3] KV Cache is allocated. #tokens: 159277, KV size: 10.42 GB"
    noise = "x" * 2_500_000
    text = {"front": line + noise, "back": noise + line, "both": noise + line + ", " + noise}[place]
    started = time.process_time()
    newest = parse([text]).newest
    assert time.process_time() - started < 60
    assert newest is not None
    assert newest.ranks["TP3"]["max_tokens"] == 159277


_WORDS = sorted({word for p in builtin().all for word in p.find})
_LINES = [line for p in builtin().all for line, _ in p.tests]
_NUMBERS = st.sampled_from(
    ["1.5 GB", "-3 GiB", "9" * 30 + " GiB", "1e9", "NaN", "inf GB", "0 B", ","]
)
_PART = st.one_of(
    st.sampled_from(_WORDS),
    st.sampled_from(_LINES),
    _NUMBERS,
    st.text(max_size=20),
    st.sampled_from(["[", "](", "][", "(Worker_TP0 pid=1) ", "{", "}", "\x1b[", "\r", "\x00", "|"]),
)


@settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(_PART, max_size=6).map("".join), max_size=25))
@example(_LINES)
def test_no_input_raises(lines: list[str]) -> None:
    """Any mixture of known words, numbers and noise gives an answer that JSON can hold."""
    startup = parse(lines)
    findings = judge(startup, "h")
    json.dumps([startup.to_json(lines=True, unmatched=True), findings], allow_nan=False)
    startup_lines("h", startup.to_json(lines=True), findings, evidence=True, every=True)


@SLOW
@given(st.binary(max_size=400))
def test_no_bytes_raise(data: bytes) -> None:
    parser = Parser()
    parser.feed(data)
    parser.feed_record(Record(data))
    parser.finish()


@pytest.mark.parametrize(
    "unit",
    [
        "[Load weight begin. GB GiB (Worker pid=1 KV cache: ",
        "Memory pool end." + " " * 60,
        "server_args=ServerArgs(" + "a=1, " * 40,
        "|   - CUDA0 (",
        "Free memory on device (1/",
        "KV cache: MLA(",
        "2026-03-01T11:52:01+0000 gpu-7 python3[1]: ",
        "[2026-03-01 11:52:01 TP0",
        "{\"log\":\"",
        "Created mmap file GB ",
    ],
)  # fmt: skip
def test_time_is_linear(unit: str) -> None:
    """Twice the text takes about twice the time, in one line and in many."""
    for joint in ("", "\n"):
        data = (joint.join([unit] * (100_000 // len(unit)))).encode()
        spent = []
        for times in (1, 4):
            started = time.process_time()
            parser = Parser()
            parser.feed(data * times)
            parser.finish()
            spent.append(time.process_time() - started)
        assert spent[1] < 10 * spent[0] + 0.5, (unit, joint, spent)
