"""What makes two lines of two hosts one line: names, pids, ranks, times and addresses aside."""

from __future__ import annotations

import re
from collections.abc import Iterable

LONGEST = 4096
_TIMES = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
    r"|\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?|\b\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\b"
    r"|\b[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d\b|^\[ {0,8}\d{1,12}\.\d{3,9}\]"
)
_ADDRESSES = re.compile(
    r"0x[0-9a-fA-F]{4,16}\b|\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?:[:<]\d{1,5}>?)?"
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
    r"|\b(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}\b|\b[0-9a-f]{12,64}\b"
)
_PIDS = re.compile(
    r"(?i)\b((?:pid|ppid|tid|process|port|task)(?:[= :#]{1,2}|s=))\d{1,10}\b"
    r"|(?<=[A-Za-z0-9)])\[\d{1,10}\]"
)
# NCCL begins every line with host:pid:tid and the number of the device.
_NCCL = re.compile(r"^[A-Za-z0-9][\w.\-]{0,252}:\d{1,10}:\d{1,10}(?: \[\d{1,4}\])?(?= )")
# The kernel names a process as "[python3:4711]" or "task python3:4711", a CPU as "CPU#3".
_KERNEL = re.compile(
    r"(\[[A-Za-z][^\[\]\s]{0,40}:|\btask [A-Za-z][\w./\-]{0,40}:|\bCPU[#: ]{1,2})\d{1,10}\b"
)
_RANKS = re.compile(
    r"(?<![A-Za-z0-9])((?:ATTN_CP|MOE_DP|PCP|DCP|DP|PP|TP|EP|CP|SP))\d{1,5}(?![A-Za-z0-9])"
    r"|(?<![A-Za-z])([Rr]ank)([ =:]{0,2})\d{1,6}\b"
)
_WORD = re.compile(r"[A-Za-z0-9][\w.\-]*")


def names_of(hosts: Iterable[str]) -> frozenset[str]:
    """What lines call these hosts: their names, and the first labels of those."""
    found: set[str] = set()
    for host in hosts:
        plain = host.rpartition("@")[2]
        found.add(plain)
        first = plain.partition(".")[0]
        if len(first) > 2 and not first.isdigit():
            found.add(first)
    return frozenset(found)


def normal(text: str, names: frozenset[str] = frozenset()) -> str:
    """*text* with times, addresses, ids, pids, ranks and host *names* as ``*``."""
    text = _NCCL.sub("*", text[:LONGEST])
    text = _TIMES.sub("*", text)
    text = _ADDRESSES.sub("*", text)
    text = _PIDS.sub(lambda found: f"{found[1]}*" if found[1] else "[*]", text)
    text = _KERNEL.sub(lambda found: f"{found[1]}*", text)
    text = _RANKS.sub(lambda one: f"{one[1]}*" if one[1] else f"{one[2]}{one[3]}*", text)
    if names:
        text = _WORD.sub(lambda one: "*" if _is_name(one[0], names) else one[0], text)
    return text


def _is_name(word: str, names: frozenset[str]) -> bool:
    word = word.rstrip(".-")
    return word in names or word.partition(".")[0] in names
