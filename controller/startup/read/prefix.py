"""Take a log line apart: what containers, journals, Ray and loggers put before the message.

Every rule is tried until none applies any more, so nested prefixes come off in any order.
Expressions are anchored and bounded: a line costs time linear in its prefix only.
"""

from __future__ import annotations

import json
import re
from typing import Any

from fleetmem.controller.startup.starts import Head

ANSI = re.compile(
    r"(?:\x1b|\x9b|#033|\\u001b|\\x1b|\^\[)\[[0-9;?]{0,32}[A-Za-z]|\x1b[_\]][^\x07\x1b\n]{0,200}\x07"
)
# Colours whose escape character was lost on the way, as copied terminals leave them.
_BARE_COLOUR = re.compile(r"\[\d{1,2}(?:;\d{1,3}){0,4}m(?=[\s(\[A-Z]|$)")
_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_ZONE = r"(?:Z|[+-]\d\d:?\d\d)?"
# A record glued to what came before it without a line break: progress bars do that.
_GLUE = re.compile(
    r"(?<=[^\s(\[{=:|\"'])(?="
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    r"|\((?:Worker|EngineCore|VllmWorker|RayWorker|APIServer|Engine)\w{0,60} (?:rank=\d+ )?pid=\d"
    r")|(?<=[\])])(?="
    r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d"
    r"|\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d"
    r"|\[(?:TensorRT-LLM|TRT-LLM|TM)\]"
    r")"
)
_CONTAINER_TIME = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)) "
    r"(?:std(?:out|err) [FP] )?"
)
_UI_TIME = re.compile(rf"(?P<time>{_STAMP}{_ZONE})\s{{0,4}}\| ?")
_COMPOSE = re.compile(r"[A-Za-z0-9][\w.\-/]{0,120}\s{0,40}\| ?|\s{0,4}\| {1,2}")
_POD = re.compile(r"\[pod/[^\]\s]{1,300}\] ?")
_JOURNAL_TIME = (
    r"(?:[A-Z][a-z]{2} )?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,6})?"
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|UTC|[A-Z]{3,5}|[+-]\d\d:?\d\d))?"
    r"|\[ {0,8}\d{1,12}\.\d{3,9}(?: < {0,12}[\d.]{1,20} >)?\]|\d{9,11}\.\d{3,6})"
)
_JOURNAL = re.compile(
    rf"(?P<time>{_JOURNAL_TIME}) "
    r"(?!(?:INFO|WARN|WARNING|NOTICE|ERROR|DEBUG|TRACE|FATAL|CUDA|HIP|NCCL) )"
    r"(?P<host>[\w.\-]{1,255}) "
    r"(?P<name>[^\s\[\]:|]{1,128}(?:\:[^\s\[\]:|]{1,64})?)(?:\[(?P<pid>\d{1,10})\])?: "
)
_DMESG = re.compile(
    r"(?:\[ {0,8}(?P<mono>\d{1,12}\.\d{3,9})\]|\[(?P<time>[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d"
    r" \d\d:\d\d:\d\d \d{4})\]|<\d{1,3}>) ?"
)
# A field of "journalctl -o verbose" or json-pretty.
_FIELD = re.compile(r"\s{1,8}\"?MESSAGE(?:=|\"\s?:\s?\")")
_RANKS = r"(?: [A-Z][A-Z_]{0,11}\d{1,5}){0,8}"
_BRACKET = re.compile(
    rf"\[(?P<time>{_STAMP}|\d\d:\d\d:\d\d)(?P<ranks>{_RANKS})(?: [a-z_]{{1,20}})?\]:?\s?"
)
_PARALLEL = r"(?:ATTN_CP|MOE_DP|MOE_EP|PCP|DCP|DP|PP|TP|EP|CP|SP)"
# A rank without a clock: "[TP0]", "[DP1 TP3]:", "(TP0)", "TP0:", torch's "[rank0]:".
_BARE_RANK = re.compile(
    rf"(?:\[(?P<square>{_PARALLEL}\d{{1,5}}(?:[ _,]{{1,2}}{_PARALLEL}\d{{1,5}}){{0,7}})\]:?"
    rf"|\((?P<round>{_PARALLEL}\d{{1,5}}(?:[ _,]{{1,2}}{_PARALLEL}\d{{1,5}}){{0,7}})\):?"
    rf"|(?P<plain>{_PARALLEL}\d{{1,5}}(?:[ _,]{{1,2}}{_PARALLEL}\d{{1,5}}){{0,7}}):"
    r"|\[[Rr]ank ?(?P<number>\d{1,6})\]:?)\s?"
)
_TAG = re.compile(
    r"[(\[]?(?P<proc>[A-Za-z_][\w.:\-]{0,80})(?: rank=(?P<rank>\d{1,6}))?(?:,)?"
    r" pid=(?P<pid>\d{1,10})"
    r"(?:, ?ip=(?P<ip>[0-9a-fA-F.:]{2,45}))?(?:, ?[a-z_]{1,20}=[^\s,)]{1,80}){0,4}[)\]]:? ?"
)
_VLLM = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)"
    r" (?P<time>(?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?)"
    r" (?:\[?[\w./\-<>]{1,200}:\d{1,6}\] ?)?"
)
_LMCACHE = re.compile(
    rf"\[(?P<time>{_STAMP})\] LMCache (?P<level>[A-Z]{{4,8}}):? ?(?:\([^)]{{0,200}}\) ?)?"
)
_TRT_TIME = re.compile(r"\[(?P<time>\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d)\] ")
_TRT_RANK = re.compile(r"\[RANK (?P<rank>\d{1,6})\] ?")
_PLAIN_LEVEL = re.compile(
    rf"(?P<time>{_STAMP}{_ZONE})\s{{1,4}}(?:-\s)?(?P<level>DEBUG|INFO|WARN(?:ING)?|ERROR)\s{{1,3}}"
)
_REPEATED = re.compile(r"\s?\[repeated (\d{1,7})x across cluster\]")
_RANK_PART = re.compile(r"(?:PCP|DCP|DP|PP|TP|EP|CP|SP)\d+")
_ENGINE_CORE = re.compile(r"EngineCore(?:_DP|_)?(\d*)$")
# What stands before an engine's own head may be anything (a shell's time, a tool's name). An
# engine's head is unmistakable, wherever it begins.
_ANYWHERE = re.compile(
    rf"\[{_STAMP}{_RANKS}\]"
    r"|\((?:Worker|EngineCore|VllmWorker|RayWorker|APIServer|ApiServer)\w{0,60}"
    r"(?: rank=\d{1,6})? pid=\d"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d (?:\[|\w+\.py:)"
    r"|\[(?:TensorRT-LLM|TRT-LLM)\]"
)
MAX_FOREIGN = 400
_TASK = re.compile(r"\[\d+,(\d{1,6})\]<std(?:out|err)>: ?|\s{0,3}(\d{1,5}): (?=[\[(A-Z])")

MAX_HEAD = 4096


def pieces(line: str) -> list[str]:
    """Split one line where a record is glued behind a progress bar; colours are taken off."""
    if "\x1b" in line or "#033[" in line or "\x9b" in line or "^[[" in line:
        line = ANSI.sub("", line)
    if "[" not in line and "(" not in line:
        return [line]
    if "m(" in line or "m " in line[:200]:
        line = _BARE_COLOUR.sub("", line)
    parts = [part for part in _GLUE.split(line) if part]
    return parts or [line]


def _rank_of(proc: str, number: str | None, pid: int | None, ip: str | None) -> str | None:
    """The rank key of a process tag; None for a process that is no rank."""
    core = _ENGINE_CORE.match(proc)
    if core:
        return f"DP{core[1]}" if core[1] else "_"
    if number is not None:
        return f"rank{number}"
    parts = _RANK_PART.findall(proc.replace("_", " "))
    if parts:
        return " ".join(parts)
    if "Worker" in proc or "Scheduler" in proc or "Actor" in proc:
        return f"{ip}/pid{pid}" if ip else f"pid{pid}"
    return None


class _Open:
    """A head while it is being read."""

    __slots__ = (
        "inner", "invocation", "ip", "level", "name", "name_pid", "outer", "own", "pid", "plain",
        "process", "rank", "task",
    )  # fmt: skip

    def __init__(self) -> None:
        self.outer: str | None = None
        self.inner: str | None = None
        self.rank: str | None = None
        self.process: str | None = None
        self.pid: int | None = None
        self.ip: str | None = None
        self.name: str | None = None
        self.name_pid: int | None = None
        self.level: str | None = None
        self.invocation: str | None = None
        self.task: str | None = None
        self.plain: str | None = None
        self.own = False  # the engine's own head was found


def _outer(text: str, at: int, open_: _Open) -> int:
    """Strip one container or journal prefix; the new position, or the old one."""
    found = _JOURNAL.match(text, at)
    if found:
        open_.outer = open_.outer or found["time"].strip("[] ")
        open_.name = found["name"]
        if found["pid"]:
            open_.name_pid = int(found["pid"])
        return found.end()
    found = _CONTAINER_TIME.match(text, at) or _UI_TIME.match(text, at)
    if found:
        open_.outer = open_.outer or found["time"]
        return found.end()
    found = _TASK.match(text, at)
    if found:
        open_.task = open_.task or found[1] or found[2]
        return found.end()
    found = _COMPOSE.match(text, at) or _POD.match(text, at)
    if found and found.end() > at:
        return found.end()
    found = _FIELD.match(text, at) if at == 0 else None
    if found:
        return found.end()
    found = _DMESG.match(text, at)
    if found and found.end() > at:
        open_.outer = open_.outer or found["time"] or found["mono"]
        return found.end()
    return at


def _tag(text: str, at: int, open_: _Open) -> int:
    """Strip one process tag such as ``(Worker_TP1 pid=7, ip=…)``."""
    found = _TAG.match(text, at)
    if not found:
        return at
    open_.own = True
    pid = int(found["pid"])
    rank = _rank_of(found["proc"], found["rank"], pid, found["ip"])
    core = (open_.process or "").startswith("EngineCore")  # prints its workers' lines with Ray
    better = rank is not None and rank != "_" and (core or "pid" not in rank)
    if open_.rank is None or better:
        open_.rank = rank
        open_.process = found["proc"]
        open_.pid = pid
        open_.ip = found["ip"]
    elif open_.process is None:
        open_.process, open_.pid = found["proc"], pid
    return found.end()


def _logger(text: str, at: int, open_: _Open) -> int:
    """Strip one logger prefix: SGLang's bracket, vLLM's header, LMCache's, TensorRT-LLM's rank."""
    found = _LMCACHE.match(text, at)
    if found:
        open_.inner = open_.inner or found["time"]
        open_.level = found["level"]
        return found.end()
    found = _TRT_TIME.match(text, at)
    if found:
        open_.inner = open_.inner or found["time"]
        return found.end()
    found = _BRACKET.match(text, at)
    if found:
        open_.inner = open_.inner or found["time"]
        open_.own = True
        if found["ranks"]:
            open_.rank = found["ranks"].strip()
        return found.end()
    found = _BARE_RANK.match(text, at)
    if found:
        if open_.rank is None:
            words = found["square"] or found["round"] or found["plain"]
            open_.rank = (
                f"rank{int(found['number'])}"
                if words is None
                else " ".join(re.split(r"[ _,]+(?=[A-Z])", words))
            )
        return found.end()
    found = _VLLM.match(text, at)
    if found:
        open_.own = True
        open_.inner = open_.inner or found["time"]
        open_.level = open_.level or found["level"]
        return found.end()
    found = _PLAIN_LEVEL.match(text, at)
    if found:
        open_.plain = open_.plain or found["time"]
        open_.level = open_.level or found["level"]
        return found.end()
    return at


def _from_json(text: str, open_: _Open) -> str | None:
    """The message of a JSON log line (structured loggers), with what it says of its process."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    message = _message(row)
    if message is None:
        return None
    for key in ("timestamp", "time", "ts", "asctime", "@timestamp"):
        if isinstance(row.get(key), (str, int, float)):
            open_.inner = open_.inner or str(row[key])
            break
    level = row.get("level") or row.get("levelname") or row.get("severity")
    if isinstance(level, str):
        open_.level = level.upper()
    pid = row.get("pid") or row.get("process_id")
    if isinstance(pid, int):
        open_.pid = pid
    proc = (
        row.get("process_name") or row.get("processName") or row.get("process") or row.get("proc")
    )
    if isinstance(proc, str) and proc:
        open_.process = proc
        open_.rank = _rank_of(proc, None, open_.pid, None)
    elif isinstance(row.get("tp_rank"), int):
        open_.rank = f"TP{row['tp_rank']}"
    target = row.get("target")
    return f"{target}: {message}" if isinstance(target, str) and target else message


def _message(row: dict[str, Any]) -> str | None:
    for key in ("message", "msg", "MESSAGE", "log", "text", "event", "textPayload", "line"):
        value = row.get(key)
        if isinstance(value, str):
            return value
    fields = row.get("fields")
    if isinstance(fields, dict) and isinstance(fields.get("message"), str):
        return str(fields["message"])
    return None


def split_head(line: str, known: Head | None = None) -> Head:
    """Take the prefixes off one piece. ``known`` is what an earlier piece of the line said."""
    open_ = _Open()
    if known is not None:
        open_.outer, open_.name, open_.name_pid = known.time, known.name, known.name_pid
        open_.invocation = known.invocation
    rest = line[MAX_HEAD:]
    text = line[:MAX_HEAD]
    at = 0
    seen_logger = False
    for _ in range(12):
        if at >= len(text):
            break
        before = at
        if text[at] == "{" and line.rstrip().endswith("}"):
            message = _from_json(line[at:], open_)
            if message is None:
                break
            text, rest, at = message[:MAX_HEAD], message[MAX_HEAD:], 0
            before = -1
        if not seen_logger:
            at = _outer(text, at, open_)
        step = _logger(text, _tag(text, at, open_), open_)
        if step != at:
            seen_logger, at = True, step
        found = _TRT_RANK.search(text, at, at + 40) if text.startswith("[TRT", at) else None
        if found and open_.rank is None:
            open_.rank = f"RANK {found['rank']}"
        if at == before:
            found = None if open_.own else _ANYWHERE.search(text, at, at + MAX_FOREIGN)
            if not found or found.start() == at:
                break
            at = found.start()
    if open_.task is not None and open_.rank is None and text.startswith("[T", at):
        open_.rank = f"RANK {open_.task}"  # TensorRT-LLM's own lines name no rank
    body = text[at:] + rest
    repeated = None
    if "[repeated " in body:
        match = _REPEATED.search(body)
        if match:
            repeated = int(match[1])
            body = body[: match.start()]
    return Head(
        text=body,
        time=open_.inner or open_.plain or open_.outer,
        rank=open_.rank,
        process=open_.process,
        pid=open_.pid,
        ip=open_.ip,
        repeated=repeated,
        name=open_.name,
        name_pid=open_.name_pid,
        level=open_.level,
        invocation=open_.invocation,
    )
