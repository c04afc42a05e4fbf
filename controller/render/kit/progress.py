"""One line on stderr: how many hosts are done and which ones everybody waits for.

On a terminal the line is rewritten in place; without one (or under CI) a plain line comes
every ten seconds. Nothing here decides anything; no rich, since this runs all the time.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from fleetmem.controller.render.kit.line import clip
from fleetmem.controller.render.kit.paint import is_terminal
from fleetmem.controller.text.safe import safe

PLAIN_SECONDS = 10.0
SLOWEST = 3
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def progress_text(
    total: int, done: int, phases: Mapping[str, tuple[str, float]], now_seconds: float
) -> str:
    """``58/64 · slowest h100-63 nvml 4 s``; *phases* is host → (phase, begun at)."""
    oldest = sorted(phases.items(), key=lambda item: item[1][1])[:SLOWEST]
    shown = [
        f"{safe(host)} {safe(phase, 24)} {max(now_seconds - since, 0):.0f} s"
        for host, (phase, since) in oldest
    ]
    return f"{done}/{total}" + (f" · slowest {', '.join(shown)}" if shown else "")


def falling_bar(used_bytes: float | None, start_bytes: int | None, width: int = 8) -> str:
    """Memory that still has to come back, as a bar of *width* cells, full at the start."""
    if used_bytes is None or not start_bytes:
        return "?" * width
    eighths = round(min(max(used_bytes / start_bytes, 0.0), 1.0) * width * 8)
    full, part = divmod(eighths, 8)
    bar = "█" * full + (_EIGHTHS[part] if part else "")
    return bar + "·" * (width - len(bar))


def wait_text(event: Mapping[str, Any]) -> str:
    """The running rung of one host: a falling bar a GPU and the seconds that are left.

    Used bytes and seconds come from the host as they are; what is no number is unknown.
    """
    pairs = zip(event["used_bytes"], event["start_bytes"], strict=False)
    bars = " ".join(falling_bar(_number(used), start) for used, start in list(pairs)[:8])
    passed = _number(event["seconds"])
    if passed is None:
        return f"{safe(event['host'])} {bars}"
    text = f"{safe(event['host'])} {bars} {passed:.1f} s"
    expect = event.get("expect_seconds")
    if expect is None or passed >= expect:
        return text
    return f"{text}, about {expect - passed:.1f} s left"


def _number(value: Any) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if usable and abs(value) < 1 << 60 else None


class Progress:
    """The progress line of one run; every method may be called at any time."""

    def __init__(
        self,
        stream: TextIO,
        quiet: bool,
        clock: Callable[[], float] = time.monotonic,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._stream = stream
        self._quiet = quiet
        self._clock = clock
        self._animated = is_terminal(stream, environ) and not environ.get("CI")
        self._phases: dict[str, tuple[str, float]] = {}
        self._total = 0
        self._done: set[str] = set()
        self._note = ""
        self._drawn = False
        self._paused = False
        self._last_plain = clock()

    def begin(self, hosts: Sequence[str]) -> None:
        """Start with nothing done."""
        self._total = len(hosts)

    def phase(self, host: str, text: str) -> None:
        """*host* has entered the phase *text*; one that was done works again."""
        self._done.discard(host)
        self._phases[host] = (text, self._clock())
        self._note = ""

    def done(self, host: str) -> None:
        """*host* has ended, however."""
        self._phases.pop(host, None)
        self._done.add(host)

    def note(self, text: str) -> None:
        """Show *text* instead of the counts until the next phase; for a single host."""
        self._note = text if self._total == 1 else ""

    def tick(self) -> None:
        """Draw if it is time to; call a few times a second."""
        if self._quiet or self._paused or not self._total:
            return
        moment = self._clock()
        if not self._animated:
            if moment - self._last_plain >= PLAIN_SECONDS:
                self._last_plain = moment
                self._write(self._text(moment) + "\n")
            return
        width = shutil.get_terminal_size().columns - 1
        self._write(f"\r\x1b[K{clip(self._text(moment), width)}")
        self._drawn = True

    def clear(self) -> None:
        """Remove the line, so that something else can be written."""
        if self._drawn:
            self._write("\r\x1b[K")
        self._drawn = False

    def pause(self) -> None:
        """Remove the line and keep it away: a person is being asked."""
        self.clear()
        self._paused = True

    def resume(self) -> None:
        """Draw again from the next tick on."""
        self._paused = False

    def _text(self, moment: float) -> str:
        return self._note or progress_text(self._total, len(self._done), self._phases, moment)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # nobody looks any more; the run goes on
            self._quiet = True
