"""``snapshot`` as a picture: the bars of the table of places as one SVG. Pure.

The same pieces in the same order as on a terminal, with the same letters; colour only repeats
them. Only presentation attributes, no style sheet and no script, so that any page may embed it.
Text of hosts stands in elements only, where the library escapes it, never in attributes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleetmem.controller.answer.envelope import Envelope, HostEntry
from fleetmem.controller.render.kit.line import plain, wrap
from fleetmem.controller.render.snapshot.places import (
    LETTERS,
    Place,
    in_tenths,
    place_notes,
    places,
    style,
)
from fleetmem.controller.render.snapshot.snapshot import failed_lines, subject
from fleetmem.controller.text.safe import safe
from fleetmem.controller.text.sizes import GIB, NONE, count, thousands

if TYPE_CHECKING:
    from typing import Any

WIDTH = 800
"""Pixels; text is at least 11 of them high."""

_EDGE, _BAR_AT, _BAR = 16, 164, 500
_FREE_AT, _TOTAL_AT = 724, 784
_CHARACTERS = 104
_FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
_INK, _DIM, _BAD = "#212121", "#5f6368", "#b71c1c"
_COLOURS = {
    "red": "#d32f2f",
    "blue": "#1565c0",
    "magenta": "#8e24aa",
    "cyan": "#00838f",
    "grey": "#757575",
    "yellow": "#fbc02d",
    "dim": "#d7ccc8",
    "free": "#f5f5f5",
    "unknown": "#ffffff",
}
_LIGHT = ("yellow", "dim", "free", "unknown")
_NAMES = {
    "FILE": "file pages",
    "CUDA": "CUDA and drivers",
    "ANON": "anonymous memory",
    "SHMEM": "shared memory",
    "KERNEL": "kernel",
    "UNACC": "unaccounted",
    "FREE": "free",
    "–": "not known",
}
_LEGEND = (
    ("F", "red", "file, GPU's node"),
    ("F", "dim", "file, elsewhere"),
    ("C", "blue", "CUDA"),
    ("A", "magenta", "anon"),
    ("S", "cyan", "shmem"),
    ("K", "grey", "kernel"),
    ("?", "yellow", "unaccounted"),
    ("·", "free", "free"),
    (NONE, "unknown", "not known"),
)


@dataclass(frozen=True)
class Piece:
    """One part of a bar. ``at`` and ``wide`` are hundredths of a pixel from the bar's left."""

    letter: str
    name: str
    colour: str
    at: int
    wide: int
    bytes: int


def pieces(row: Place, wide: int = _BAR * 100) -> list[Piece]:
    """The parts of *row* that have any bytes; their widths add up to *wide*.

    What no part explains is one more piece, "not known". Where the parts are more than the
    total (counters of two moments), they share the bar.
    """
    total = row.total or 0
    sizes = {name: max(0, row.parts.get(name) or 0) for name in LETTERS}
    rest = total - sum(sizes.values())
    whole = max(total, sum(sizes.values()))
    found = []
    at = seen = 0
    for name, size in [*sizes.items(), (NONE, max(0, rest))]:
        if not size:
            continue
        seen += size
        edge = seen * wide // whole
        letter = LETTERS[name][0] if name in LETTERS else NONE
        found.append(Piece(letter, _NAMES[name], _colour(name, row), at, edge - at, size))
        at = edge
    return found


def _colour(name: str, row: Place) -> str:
    return {"FREE": "free", NONE: "unknown"}.get(name) or style(name, row)


def snapshot_svg(envelope: Envelope) -> str:
    """The document, in ASCII: the same bytes for the same envelope."""
    import drawsvg as draw

    body = draw.Group()
    y = _head(draw, body, envelope)
    y = _legend(draw, body, y + 8)
    several = len(envelope["hosts"]) > 1
    for entry in envelope["hosts"]:
        if "snapshot" not in entry:
            continue
        y += 14
        if several:
            y = _write(draw, body, wrap(_host(entry), _CHARACTERS - 12), y, size=13) + 3
        host = f"{safe(entry['host'])}, " if several else ""
        for row in places(entry["snapshot"]):
            y = _bar(draw, body, row, host, y)
        for note in place_notes(entry["snapshot"]):
            y = _write(draw, body, wrap(note, 90), y - 2, x=_BAR_AT, size=11, fill=_DIM)
    lines = [plain(line) for line in failed_lines(envelope["hosts"])]
    y = _write(draw, body, lines, y + (14 if lines else 0), fill=_BAD)
    drawing = draw.Drawing(WIDTH, y + _EDGE, font_family=_FONT, fill=_INK)
    drawing.append_title(" · ".join(_title(envelope)))
    drawing.append(draw.Rectangle(0, 0, WIDTH, y + _EDGE, fill="#ffffff"))
    drawing.append(body)
    text: str = drawing.as_svg()
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii") + "\n"


def _title(envelope: Envelope) -> Iterator[str]:
    """Who and when: the host or how many, the run, the phase, the time."""
    entries = envelope["hosts"]
    summary = envelope["summary"]
    if len(entries) == 1:
        yield _host(entries[0])
    else:
        ended = (f"{n} {word}" for word, n in summary.items() if word != "targeted" and n)
        yield f"{count(summary['targeted'], 'host')}: {', '.join(ended)}"
    yield f"run {safe(envelope['run']['id'])}"
    phases = {e["snapshot"]["phase"] for e in entries if "snapshot" in e} - {None}
    yield from (f"phase {safe(phase)}" for phase in sorted(map(str, phases)))
    yield f"{safe(envelope['run']['started'][:19]).replace('T', ' ')} UTC"


def _host(entry: HostEntry) -> str:
    name = safe(entry["host"])
    return f"{name} · {subject(entry)}" if entry["readings"] else name


def _head(draw: Any, body: Any, envelope: Envelope) -> int:
    who, *when = _title(envelope)
    y = _write(draw, body, wrap(who, 78), _EDGE, size=16)
    text = " · ".join([*when, "GiB = 2^30 bytes"])
    return _write(draw, body, wrap(text, _CHARACTERS), y + 2, fill=_DIM)


def _write(
    draw: Any,
    body: Any,
    lines: Sequence[str],
    y: int,
    *,
    x: int = _EDGE,
    size: int = 12,
    fill: str = _INK,
) -> int:
    """*lines* from *y* on; the y below them. More than 12 pixels is a heading, and bold."""
    weight = "bold" if size > 12 else None
    for line in lines:
        y += size + 4
        body.append(draw.Text(line, size, x, y - 4, fill=fill, font_weight=weight))
    return y


def _legend(draw: Any, body: Any, y: int) -> int:
    for number, (letter, colour, name) in enumerate(_LEGEND):
        x, row = _EDGE + number % 5 * 154, y + number // 5 * 20
        _block(draw, body, x, row, 16, 14, colour, letter)
        body.append(draw.Text(name, 12, x + 22, row + 11))
    y += 52
    for x, text, anchor in (
        (_EDGE, "WHERE", "start"),
        (_BAR_AT, "0 %", "start"),
        (_BAR_AT + _BAR, "100 %", "end"),
        (_FREE_AT, "FREE", "end"),
        (_TOTAL_AT, "TOTAL", "end"),
    ):
        body.append(draw.Text(text, 11, x, y, fill=_DIM, text_anchor=anchor))
    return y


def _bar(draw: Any, body: Any, row: Place, host: str, y: int) -> int:
    """One place: its name, its bar, its figures; the y below it."""
    where = safe(row.where)
    body.append(draw.Text(row.name, 12, _EDGE, y + 14))
    body.append(draw.Text(where, 12, _EDGE + 84, y + 14, fill=_DIM))
    tenths = in_tenths(row)
    for x, name in ((_FREE_AT, "FREE"), (_TOTAL_AT, "TOTAL")):
        body.append(draw.Text(_figure(tenths[name]), 12, x, y + 14, text_anchor="end"))
    bar = draw.Group()
    for piece in pieces(row):
        size = f"{piece.bytes / GIB:.1f} GiB, {thousands(piece.bytes)} bytes"
        title = f"{host}{row.name}, {where}: {piece.name} {size}"
        _block(draw, bar, _BAR_AT + piece.at / 100, y, piece.wide / 100, 19, piece.colour,
               piece.letter, title)  # fmt: skip
    if not bar.children:
        bar.append(draw.Text("not known", 11, _BAR_AT, y + 14, fill=_DIM))
    body.append(bar)
    parts = [f"{name} {_figure(tenths[name])}" for name in LETTERS if name != "FREE"
             and row.parts.get(name) is not None]  # fmt: skip
    body.append(draw.Text(" · ".join(parts), 11, _BAR_AT, y + 32, fill=_DIM))
    return y + 42


def _figure(value: int | None) -> str:
    return NONE if value is None else f"{value / 10:.1f}"


def _block(
    draw: Any,
    body: Any,
    x: float,
    y: int,
    wide: float,
    high: int,
    colour: str,
    letter: str,
    title: str | None = None,
) -> None:
    """A rectangle with its letter where there is room for it."""
    frame = "#9e9e9e" if colour in ("free", "unknown") else "#ffffff"
    block = draw.Rectangle(
        _pixels(x), y, _pixels(wide), high, fill=_COLOURS[colour], stroke=frame, stroke_width=0.5
    )
    if title is not None:
        block.args["role"] = "img"
        block.append_title(title)
    body.append(block)
    if wide >= 12:
        ink = _INK if colour in _LIGHT else "#ffffff"
        middle = _pixels(round(x + wide / 2, 2))
        body.append(
            draw.Text(letter, 11, middle, y + high - 4, fill=ink, text_anchor="middle",
                      pointer_events="none")
        )  # fmt: skip


def _pixels(value: float) -> str:
    """At most two decimals, none where there are none."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
