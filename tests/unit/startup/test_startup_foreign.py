"""Logs that nobody handed over: shared by engines, cut short, of other programs, exported."""

# ruff: noqa: E501  (log lines stand as engines print them)

from __future__ import annotations

import gzip
import json
import os
import struct
import threading
from pathlib import Path

import pytest

from fleetmem.controller.cli import main
from fleetmem.controller.startup import offline
from fleetmem.controller.startup.judge.diagnose import judge
from fleetmem.controller.startup.offline import audit_logs, read_log
from fleetmem.controller.startup.read.parse import MAX_LINE, Parser, parse
from fleetmem.controller.startup.starts import Startup

GIB = 2**30
SGLANG = [
    "[2025-11-20 07:00:01] server_args=ServerArgs(model_path='/m/a', mem_fraction_static=0.4)",
    "[2025-11-20 07:00:14 TP0] Load weight begin. avail mem=78.50 GB",
    "[2025-11-20 07:00:17 TP0] Load weight end. type=QwenForCausalLM, dtype=torch.bfloat16, avail mem=66.00 GB, mem usage=12.50 GB.",
    "[2025-11-20 07:00:19 TP0] KV Cache is allocated. #tokens: 20000, K size: 2.50 GB, V size: 2.50 GB",
    "[2025-11-20 07:00:41 TP0] max_total_num_tokens=20000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=64, context_len=4096, available_gpu_mem=6.50 GB",
]
VLLM = [
    "INFO 11-20 07:00:02 [api_server.py:1034] vLLM API server version 0.9.2",
    "INFO 11-20 07:00:15 [core.py:70] Initializing a V1 LLM engine (v0.9.2) with config: model='/m/b', max_seq_len=4096",
    "INFO 11-20 07:00:18 [gpu_model_runner.py:1801] Model loading took 14.2500 GiB and 3.300 seconds",
    "INFO 11-20 07:00:40 [gpu_worker.py:232] Available KV cache memory: 15.50 GiB",
    "INFO 11-20 07:00:42 [kv_cache_utils.py:716] GPU KV cache size: 37,376 tokens",
]


def _bytes(data: bytes, size: int = 1 << 16) -> Startup:
    parser = Parser()
    for at in range(0, len(data), size):
        parser.feed(data[at : at + size])
    return parser.finish()


def test_two_engines_in_one_log_have_starts_of_their_own() -> None:
    """Line by line in turn, as compose writes them."""
    lines = [line for pair in zip(SGLANG, VLLM, strict=True) for line in pair]
    sglang, vllm = parse(lines).invocations
    assert (sglang.engine_name, vllm.engine_name) == ("sglang", "vllm")
    assert (sglang.version, vllm.version) == (None, "0.9.2")
    assert sglang.to_json()["ranks"] == parse(SGLANG).invocations[0].to_json()["ranks"]
    assert vllm.to_json()["ranks"] == parse(VLLM).invocations[0].to_json()["ranks"]
    assert (sglang.config["model_path"], vllm.config["model"]) == ("/m/a", "/m/b")
    assert vllm.engine["max_tokens"] == 37376


def test_a_second_start_of_one_of_two_engines_is_a_new_one() -> None:
    lines = SGLANG + VLLM + SGLANG
    assert [one.engine_name for one in parse(lines).invocations] == ["sglang", "vllm", "sglang"]


@pytest.mark.parametrize(
    "line",
    [
        "INFO:     Application startup complete.",
        "INFO:     Uvicorn running on http://127.0.0.1:9000 (Press CTRL+C to quit)",
        "INFO:     Application shutdown complete.",
        "loading model",
        "redis: server is listening on port 6379",
        "app: failed to load model weights.bin",
        "2026-03-01 10:00:00,123 INFO wrote 12.3 GB of 40 GiB",
        "[2026-03-01 13:00:00 TP0] Decode batch. #running-req: 12, #token: 48211, token usage: 0.30",
        "KV cache pool is full. Retract requests. #retracted_reqs: 1",
    ],
)
def test_other_programs_lines_start_nothing(line: str) -> None:
    assert parse([line]).invocations == ()


def test_the_web_server_makes_a_known_engine_ready() -> None:
    newest = parse([*VLLM, "INFO:     Application startup complete."]).newest
    assert newest is not None
    assert (newest.engine_name, newest.status) == ("vllm", "ready")


def test_a_number_that_the_end_cuts_is_not_read() -> None:
    whole = SGLANG[-1].encode()
    cut = whole[: whole.index(b"8192") + 2]
    for data in (cut, cut + b"\0\0\0"):  # a crash leaves zeros
        inv = _bytes(data).invocations[0]
        assert inv.engine == {"max_total_num_tokens": 20000}
    assert _bytes(cut + b"\n").invocations[0].engine["chunked_prefill_size"] == 81
    assert _bytes(whole[: whole.index(b"20000") + 3]).invocations == ()
    assert _bytes(whole).invocations[0].ranks["TP0"]["available_final_bytes"] == 6.5 * GIB


def _export(lines: list[str], binary: bool) -> bytes:
    data = b""
    for number, line in enumerate(lines):
        text = line.encode() + b"\nmore of it" if binary else line.encode()
        field = b"MESSAGE\n" + struct.pack("<Q", len(text)) + text if binary else b"MESSAGE=" + text
        stamp = 1_772_127_600_000_000 + number * 1_000_000
        data += b"__CURSOR=s=%d\n__REALTIME_TIMESTAMP=%d\n" % (number, stamp)
        data += b"_CMDLINE=python3 -m sglang.launch_server --mem-fraction-static 0.5\n"
        data += field + b"\n_PID=47\n_SYSTEMD_INVOCATION_ID=" + b"ab" * 16 + b"\n\n"
    return data


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_journal_export_is_read(binary: bool, size: int) -> None:
    (inv,) = _bytes(_export(SGLANG, binary), size).invocations
    assert inv.invocation_id == "ab" * 16
    assert inv.started == "2026-02-26T17:40:00Z"
    assert inv.ranks == parse(SGLANG).invocations[0].ranks
    assert inv.config["mem_fraction_static"] == 0.4


@pytest.mark.parametrize("cut", [30, 150, 200, 333])
def test_a_cut_export_gives_what_it_holds(cut: int) -> None:
    data = _export(SGLANG, True)
    assert len(_bytes(data[:-cut]).invocations) == 1


def test_a_journal_field_with_the_command_line_is_no_start() -> None:
    lines = []
    for line in SGLANG:
        lines += [
            "Thu 2026-02-26 17:41:22.123456 UTC [s=1;i=2]",
            "    _CMDLINE=python3 -m sglang.launch_server --mem-fraction-static 0.5",
            f"    MESSAGE={line}",
        ]
    (inv,) = parse(lines).invocations
    assert inv.config["mem_fraction_static"] == 0.4


def test_shippers_put_whole_lines_without_newlines_into_log() -> None:
    rows = [json.dumps({"log": line, "kubernetes": {"pod_name": "a"}}) for line in SGLANG]
    (inv,) = parse(rows).invocations
    assert inv.ranks == parse(SGLANG).invocations[0].ranks


def _log(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def test_a_pipe_is_read(tmp_path: Path) -> None:
    """``--log <(zcat …)``: nothing can be wound back."""
    for data in (_log(SGLANG), gzip.compress(_log(SGLANG))):
        fifo = tmp_path / f"fifo{len(data)}"
        os.mkfifo(fifo)
        writer = threading.Thread(target=fifo.write_bytes, args=(data,))
        writer.start()
        startup = read_log(str(fifo))
        writer.join(60)
        assert startup.invocations[0].ranks == parse(SGLANG).invocations[0].ranks


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_what_powershell_redirects_is_read(tmp_path: Path, encoding: str) -> None:
    mark = {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}.get(encoding, b"")
    path = tmp_path / "server.log"
    path.write_bytes(mark + _log(SGLANG).decode().encode(encoding))
    assert read_log(str(path)).invocations[0].ranks == parse(SGLANG).invocations[0].ranks


def test_a_packed_log_that_breaks_off_gives_what_it_holds(tmp_path: Path) -> None:
    noise = [f"{number} {number * 7919 % 10007:x} tokens" for number in range(20_000)]
    packed = gzip.compress(_log(SGLANG + noise))
    path = tmp_path / "server.log.2.gz"
    path.write_bytes(packed[: len(packed) // 2])
    (host,) = audit_logs([str(path)])["hosts"]
    assert host["outcome"] == "partial"
    assert host["error"]["code"] == "log_unreadable"
    ranks = host["startup"][0]["invocations"][0]["ranks"]
    assert ranks["TP0"]["weights_bytes"] == 12.5 * GIB
    with pytest.raises(OSError, match="end-of-stream"):
        read_log(str(path))


def test_only_what_was_there_when_it_was_opened_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that grows as fast as it is read ends all the same."""
    path = tmp_path / "server.log"
    path.write_bytes(_log(SGLANG))
    monkeypatch.setattr(offline, "READ_BYTES", 64)
    feed = Parser.feed

    def grow(parser: Parser, data: bytes) -> None:
        with path.open("ab") as file:
            file.write(b"one more line of a busy server, as long as a portion, or longer than it\n")
        feed(parser, data)

    monkeypatch.setattr(Parser, "feed", grow)
    assert len(read_log(str(path)).invocations) == 1


def test_numbers_beyond_every_memory_are_not_read() -> None:
    lines = [
        "[2025-11-20 07:00:14 TP0] Load weight begin. avail mem=999999999999999999 GB",
        "[2025-11-20 07:00:19 TP0] KV Cache is allocated. #tokens: 99999999999999999999999999, K size: 2.50 GB, V size: 2.50 GB",
        "[2025-11-20 07:00:19 TP0] SWAKVPool mem usage: 3.2498779296875 GB, swa size: 10, full size: 20",
    ]
    (inv,) = parse(lines[:2]).invocations
    assert "avail_before_load_bytes" not in inv.ranks["TP0"]
    assert "max_tokens" not in inv.ranks["TP0"]
    assert inv.ranks["TP0"]["kv_cache_bytes"] == 5 * GIB
    (inv,) = parse(lines[2:]).invocations
    assert inv.ranks["TP0"]["kv_cache_bytes"] == round(3.2498779296875 * GIB)


def test_zeros_at_a_lines_end_hide_no_number() -> None:
    data = b"\0\n".join(line.encode() for line in SGLANG) + b"\0\n"
    assert _bytes(data).invocations[0].ranks == parse(SGLANG).invocations[0].ranks


def test_an_endless_line_is_cut() -> None:
    long = b"x 1 GB " * (MAX_LINE // 4) + b"Memory pool end. avail mem=1.00 GB\n"
    startup = _bytes(long + _log(SGLANG))
    assert startup.invocations[0].ranks == parse(SGLANG).invocations[0].ranks


def test_a_pid_is_no_count() -> None:
    line = "Memory cgroup out of memory: Killed process 515101 (python3) total-vm:9kB, anon-rss:8kB, file-rss:0kB, shmem-rss:0kB"
    (found,) = judge(parse([*SGLANG[:1], line]), "h")[:1]
    assert "python3 (515101)" in found["evidence"]["say"]


@pytest.mark.parametrize("lines", [SGLANG, VLLM])
def test_lines_that_stand_twice_are_told_once(lines: list[str]) -> None:
    """A logger with two handlers; no draft and no second start come of it."""
    twice = [line for line in lines for _ in (0, 1)]
    (inv,) = parse(twice).invocations
    assert inv.ranks == parse(lines).invocations[0].ranks


def test_equal_pools_of_several_drafts_are_added() -> None:
    draft = "[2025-11-20 07:00:20 TP0] KV Cache is allocated. #tokens: 20000, K size: 0.25 GB, V size: 0.25 GB"
    (inv,) = parse([*SGLANG[:4], draft, draft, SGLANG[4]]).invocations
    assert inv.ranks["TP0"]["draft_kv_cache_bytes"] == GIB
    once = [line for line in (*SGLANG[:4], draft, draft, SGLANG[4]) for _ in (0, 1)]
    assert parse(once).invocations[0].ranks == inv.ranks


def test_a_clock_that_jumps_back_changes_nothing() -> None:
    back = [line.replace("07:00:19", "03:00:19").replace("07:00:41", "03:00:41") for line in SGLANG]
    (inv,) = parse(back).invocations
    assert inv.ranks == parse(SGLANG).invocations[0].ranks


def test_engines_that_share_a_log_are_shown_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "compose.log"
    late = "(EngineCore_DP0 pid=9) ERROR 11-20 07:01:00 [core.py:708] ValueError: No available memory for the cache blocks."
    path.write_bytes(_log([*SGLANG, *SGLANG, *VLLM, late]))
    answer = audit_logs([str(path)])
    vllm, sglang = answer["hosts"][0]["startup"]
    assert (vllm["engine"], sglang["engine"]) == ("vllm", "sglang")
    assert [(one["index"], one["age"]) for one in sglang["invocations"]] == [(0, 1), (1, 0)]
    assert [one["age"] for one in vllm["invocations"]] == [0]
    assert {one["subject"] for one in answer["findings"]} == {"vllm", "sglang"}
    assert main(["audit", "startup", "--log", str(path), "-q"]) == 0
    screen = capsys.readouterr().out
    assert "vLLM 0.9.2 · GiB" in screen
    assert "SGLang · GiB" in screen
    assert screen.count("start-failed") == 1


def test_tokens_are_shown_where_no_bytes_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tgi.log"
    path.write_bytes(
        b"2026-05-01T10:00:10.0Z  INFO text_generation_router: router/src/main.rs:317: "
        b"Setting max batch total tokens to 20480\n"
    )
    assert main(["audit", "startup", "--log", str(path), "-q"]) == 0
    assert "20 480 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("printed", "tokens"),
    [("2,042,016", 2042016), ("100752", 100752), ("1,2,3", None), ("12,34", None)],
)
def test_commas_part_thousands_only(printed: str, tokens: int | None) -> None:
    lines = [
        VLLM[0],
        f"INFO 11-20 07:00:42 [kv_cache_utils.py:716] GPU KV cache size: {printed} tokens",
    ]
    (inv,) = parse(lines).invocations
    assert inv.engine.get("max_tokens") == tokens


def test_a_comma_is_no_decimal_point() -> None:
    lines = [SGLANG[0], SGLANG[1].replace("78.50", "78,5"), SGLANG[2]]
    (inv,) = parse(lines).invocations
    assert "avail_before_load_bytes" not in inv.ranks["TP0"]
    grouped = SGLANG[1].replace("78.50", "1,078.50")
    assert parse([grouped]).invocations[0].ranks["TP0"] == {"avail_before_load_bytes": 1078.5 * GIB}
