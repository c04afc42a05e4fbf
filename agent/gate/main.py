"""The gate from a command line, without anything that is not in this package.

python3 gate.py --gpu all --timeout 60s [--need 80GiB] [-o json]
"""

from __future__ import annotations

import os
import sys

from fleetmem.agent.gate.scope import ScopeError
from fleetmem.agent.gate.waiting import EXITS, watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

SCHEMA = "fleetmem/1"
USAGE = 2
SPANS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
SIZES = {
    **{"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
    **{"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40},
}
HELP = """usage: gate.py [--gpu GPUS] [--need SIZE] [--timeout TIME] [-o table|json]

Wait until the memory of these GPUs is free. Fails at once where a live process or file pages
hold it, and names them.

  --gpu GPUS       all (default), N, N-M, a UUID or a PCI address, joined by commas
  --need SIZE      free memory wanted on each GPU (80GiB); default: all of it
  --timeout TIME   how long to wait while memory falls (default 60s)
  -o FORMAT        table (default) or json

Exit status: 0 free, 5 held, 3 cannot tell, 2 usage.
"""


class UsageError(ValueError):
    """An option that cannot be used as given, in one line."""


def main(words: Optional[List[str]] = None) -> int:
    """Parse *words*, wait, print; the exit status."""
    try:
        given = parse(sys.argv[1:] if words is None else words)
        if given is None:
            sys.stdout.write(HELP)
            return 0
        return run(given["gpu"], given["need"], given["timeout"], given["format"])
    except (UsageError, ScopeError) as error:
        sys.stderr.write("gate: %s\n" % error)
        return USAGE
    except KeyboardInterrupt:
        return 130


def parse(words: List[str]) -> Optional[Dict[str, Any]]:
    """Options as values; ``None`` where help is wanted. UsageError in one line."""
    names = {"--gpu": "gpu", "--need": "need", "--timeout": "timeout", "-o": "format"}
    found: Dict[str, str] = {"gpu": "all", "need": "", "timeout": "60s", "format": "table"}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word in ("-h", "--help"):
            return None
        if name not in names:
            raise UsageError("there is no option %r (see --help)" % word)
        if not equals:
            if not rest:
                raise UsageError("%s needs a value" % name)
            value = rest.pop(0)
        found[names[name]] = value
    if found["format"] not in ("table", "json"):
        raise UsageError("-o: %r is not a format; use table or json" % found["format"])
    return {
        "gpu": found["gpu"],
        "need": size(found["need"]) if found["need"] else None,
        "timeout": seconds(found["timeout"]),
        "format": found["format"],
    }


def size(text: str) -> int:
    """Bytes of ``80GiB``, ``80 GB`` or a bare number of bytes."""
    number, unit = _split(text)
    if unit.upper() not in ("", *SIZES):
        raise UsageError("--need: %r is not a size (80GiB)" % text)
    return int(number * SIZES.get(unit.upper(), 1))


def seconds(text: str) -> float:
    """Seconds of ``60s``, ``2m``, ``500ms`` or a bare number of seconds."""
    number, unit = _split(text)
    if unit.lower() not in ("", *SPANS):
        raise UsageError("--timeout: %r is not a duration (60s)" % text)
    return number * SPANS.get(unit.lower(), 1.0)


def _split(text: str) -> "tuple[float, str]":
    bare = text.strip()
    cut = len(bare.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    try:
        number = float(bare[:cut])
    except ValueError:
        raise UsageError("%r does not begin with a number" % text) from None
    if not 0 <= number < 1e15:
        raise UsageError("%r is out of range" % text)
    return number, bare[cut:]


def run(gpu: str, need: Optional[int], timeout: float, form: str) -> int:
    """Wait, print the answer on stdout and progress on stderr; the exit status."""
    shown = [0.0]

    def progress(line: str) -> None:
        from time import monotonic

        if monotonic() - shown[0] >= 1.0:
            shown[0] = monotonic()
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    answer = watch(gpu, need, timeout, progress)
    if form == "json":
        import json

        text = json.dumps({"schema": SCHEMA, "gate": answer}, ensure_ascii=False) + "\n"
    else:
        text = "\n".join(lines(answer)) + "\n"
    data = text.encode("utf-8", "replace")
    while data:
        data = data[os.write(1, data) :]
    return EXITS[answer["verdict"]]


def lines(answer: Dict[str, Any]) -> List[str]:
    """The answer for a person: a line a GPU, the verdict, what to run next."""
    found = []
    for gpu in answer["gpus"]:
        free = "–" if gpu["free_bytes"] is None else "%.1f GiB free" % (gpu["free_bytes"] / 2**30)
        found.append("GPU %d  %s  %s%s" % (gpu["index"], free, gpu["verdict"], _why(gpu)))
        for holder in gpu["holders"][:8]:
            used = holder["bytes"]
            held = "size unknown" if used is None else "%.1f GiB" % (used / 2**30)
            words = (clean(holder["name"]), holder["pid"], held, clean(holder["why"]))
            found.append("       %s (pid %d): %s, %s" % words)
        if len(gpu["holders"]) > 8:
            found.append("       and %d more" % (len(gpu["holders"]) - 8))
    held_gpus = sum(gpu["verdict"] != "free" for gpu in answer["gpus"])
    count = "%d of %d GPUs, " % (held_gpus, len(answer["gpus"])) if held_gpus else ""
    problem = ": " + clean(answer["problem"]) if answer["problem"] else ""
    end = (answer["verdict"], problem, count, answer["waited_seconds"])
    found.append("%s%s  %safter %.1f s" % end)
    return found + ["next   " + clean(command) for command in answer["next"]]


def _why(gpu: Dict[str, Any]) -> str:
    return ": " + clean(gpu["why"]) if gpu["why"] else ""


def clean(text: str) -> str:
    """*text* on one line without control characters or marks that turn the line around."""
    marks = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    return "".join("?" if not (c.isprintable()) or c in marks else c for c in text)
