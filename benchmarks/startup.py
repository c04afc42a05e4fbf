"""Log to budget: MB a second on one core, and whether time grows with size alone."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.fanout import ratio
from fleetmem.controller.startup.read.parse import Parser

LINES = 600_000
ROUNDS = 3
BYTES_A_SECOND = 50e6
HEAD = """[2026-03-01 11:50:00] server_args=ServerArgs(model_path='/models/k2', tp_size=8, mem_fraction_static=0.88)
[2026-03-01 11:50:10 TP{rank}] Load weight begin. avail mem=94.04 GB
[2026-03-01 11:51:10 TP{rank}] Load weight end. type=Demo, dtype=torch.bfloat16, avail mem=21.71 GB, mem usage=72.33 GB.
[2026-03-01 11:51:12 TP{rank}] KV Cache is allocated. #tokens: 159277, KV size: 10.42 GB
[2026-03-01 11:51:13 TP{rank}] Memory pool end. avail mem=11.29 GB
[2026-03-01 11:52:00 TP{rank}] max_total_num_tokens=159277, chunked_prefill_size=8192, max_running_requests=128, context_len=131072, available_gpu_mem=9.94 GB
"""  # noqa: E501  an engine's own lines


def main() -> list[tuple[str, str]]:
    """The rows of the table."""
    whole, half = text(LINES), text(LINES // 2)
    spent = min(timed(whole) for _ in range(ROUNDS))
    less = min(timed(half) for _ in range(ROUNDS))
    size = len(whole) / 1e6
    return [
        ("a serving engine's log, 8 ranks", f"{size:.0f} MB in {spent:.2f} s CPU"),
        ratio("50 MB/s a core / measured", BYTES_A_SECOND / (len(whole) / spent), 1),
        ratio("CPU for twice the size / CPU (2 is linear)", spent / less, 2.3),
    ]


def timed(data: bytes) -> float:
    """CPU seconds from bytes to budgets; the start must be in them."""
    begin = time.process_time()
    parser = Parser()
    for at in range(0, len(data), 1 << 16):
        parser.feed(data[at : at + (1 << 16)])
    made = parser.finish().to_json()
    spent = time.process_time() - begin
    ranks = made["invocations"][-1]["ranks"]
    if len(ranks) != 8 or ranks["TP3"]["max_tokens"] != 159277:
        raise RuntimeError("the start was not read")
    return spent


def text(lines: int) -> bytes:
    """A start of eight ranks, then what a busy server logs for the rest of the day."""
    return "".join(rows(lines)).encode()


def rows(lines: int) -> Iterator[str]:
    for rank in range(8):
        yield HEAD.format(rank=rank) if rank == 0 else HEAD.split("\n", 1)[1].format(rank=rank)
    for number in range(lines):
        clock = (
            f"[2026-03-01 {12 + number // 36000 % 12:02}:{number // 600 % 60:02}:00 TP{number % 8}]"
        )
        yield (
            f"{clock} Decode batch. #running-req: {number % 97}, #token: {number * 7 % 159277}, "
            f"token usage: 0.{number % 90 + 10}, gen throughput (token/s): {number % 997}.25, "
            f"#queue-req: {number % 5}\n"
        )
