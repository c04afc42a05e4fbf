"""The one way to lay out a table: what each column may lose, and how a loss shows. Pure.

A column of figures or names is never cut or broken. Where the screen is too narrow, columns
with ``drop`` go first (the largest first; one without any content always), then a ``below``
column moves under its row, then an ``above`` column (hosts) over it. Text wraps down to
``least`` cells and no further. What is cut shows ``…``: text beyond ``lines`` lines, and the
front of a path. rich draws the cells.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from fleetmem.controller.render.kit.line import STYLES, Line, Span, cells, clip, wrap

if TYPE_CHECKING:
    from rich.style import Style
    from rich.table import Table
    from rich.text import Text

GAP = 2

Cell = str | Line


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``least`` 0 means as wide as its content; ``most`` 0 means no limit.

    ``size`` is what it is wide at least, whatever is in it. ``path`` keeps the end of a text
    that does not fit, on one line. ``lines`` 0 means all.
    """

    title: str
    right: bool = False
    size: int = 0
    least: int = 0
    most: int = 0
    lines: int = 0
    drop: int = 0
    path: bool = False
    place: Literal["", "above", "below"] = ""


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one row, the style of its plain ones, and lines of text under it."""

    cells: Sequence[Cell]
    style: str = ""
    notes: Sequence[Span] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A line between rows that says what the rows below it are."""

    title: str


@dataclass(frozen=True, slots=True)
class _Grid:
    """The columns that stand side by side, with their widths in cells."""

    columns: tuple[int, ...]
    widths: tuple[int, ...]
    above: tuple[int, ...] = ()
    below: tuple[int, ...] = ()


def hosts_column(width: int) -> Column:
    """Node sets: beside their row while that leaves room for it, else over it."""
    return Column("HOSTS", most=max(18, width // 4), place="above")


def table_lines(
    columns: Sequence[Column], rows: Sequence[Row | Part], width: int, *, heads: bool = True
) -> list[Line]:
    """*rows* under the titles of *columns*, *width* cells wide. No rows, no lines."""
    if not rows:
        return []
    body = [row for row in rows if isinstance(row, Row)]
    grid = _grid(columns, body, width)
    drawn = _drawn(columns, body, grid, heads)
    lines = [next(drawn)[0]] if heads else []
    for row in rows:
        if isinstance(row, Part):
            lines.append(((row.title, "dim"),))
            continue
        for at in grid.above:
            if _goes_above(columns[at], row.cells[at], at in grid.columns):
                lines += _texts(row.cells[at], row.style, 0, width)
        lines += next(drawn)
        for at in grid.below:
            lines += _texts(row.cells[at], row.style, 4, width)
        for text, style in row.notes:
            lines += _texts(((text, style),), row.style, 4, width)
    return lines


def needed(columns: Sequence[Column], rows: Sequence[Row]) -> int:
    """The cells that a table takes with every column shown and as narrow as it may be."""
    least = (_least(one, _natural(one, at, rows)) for at, one in enumerate(columns))
    return sum(least) + GAP * (len(columns) - 1)


def measured(columns: Sequence[Column], rows: Sequence[Row], width: int) -> dict[str, int]:
    """How wide each column that is shown becomes, by its title."""
    grid = _grid(columns, rows, width)
    return dict(zip((columns[at].title for at in grid.columns), grid.widths, strict=True))


# --- widths --------------------------------------------------------------------------------


def _grid(columns: Sequence[Column], rows: Sequence[Row], width: int) -> _Grid:
    wide = [_natural(column, at, rows) for at, column in enumerate(columns)]
    least = [_least(column, natural) for column, natural in zip(columns, wide, strict=True)]
    shown = [at for at, one in enumerate(columns) if not one.drop or _filled(rows, at)]
    above = [at for at in shown if columns[at].place == "above"]
    below: list[int] = []

    def least_width() -> int:
        return sum(least[at] for at in shown) + GAP * (len(shown) - 1)

    while least_width() > width and any(columns[at].drop for at in shown):
        shown.remove(max(shown, key=lambda at: (columns[at].drop, at)))
    for place in ("below", "above"):
        for at in [at for at in shown if columns[at].place == place]:
            if least_width() > width and len(shown) > 1:
                shown.remove(at)
                if place == "below":
                    below.append(at)
    spare = width - least_width()
    widths = {at: least[at] for at in shown}
    while spare > 0 and (open_ := [at for at in shown if widths[at] < wide[at]]):
        first = min(columns[at].drop for at in open_)  # what may go gets room last
        open_ = [at for at in open_ if columns[at].drop == first]
        for at in sorted(open_, key=lambda at: widths[at])[:spare]:
            widths[at] += 1
            spare -= 1
    return _Grid(tuple(shown), tuple(widths[at] for at in shown), tuple(above), tuple(below))


def _filled(rows: Sequence[Row], at: int) -> bool:
    return any(_text(row.cells[at]).strip() for row in rows)


def _natural(column: Column, at: int, rows: Sequence[Row]) -> int:
    inside = [
        size
        for row in rows
        if (size := _widest(row.cells[at])) <= column.most or column.place != "above"
    ]
    natural = max([cells(column.title), column.size, *inside])
    return min(natural, column.most) if column.most else natural


def _least(column: Column, natural: int) -> int:
    return min(natural, max(column.least, cells(column.title))) if column.least else natural


def _goes_above(column: Column, cell: Cell, shown: bool) -> bool:
    return not shown or bool(column.most and _widest(cell) > column.most)


# --- cells ---------------------------------------------------------------------------------


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else "".join(text for text, _ in cell)


def _widest(cell: Cell) -> int:
    return max(map(cells, _text(cell).split("\n")))


def _spans(cell: Cell, style: str) -> Line:
    if isinstance(cell, str):
        return ((cell, style),)
    return tuple((text, own or style) for text, own in cell)


def _texts(cell: Cell, style: str, indent: int, width: int) -> list[Line]:
    """*cell* over the whole width, on lines of its own."""
    if not _text(cell).strip():
        return []
    pieces = _pieces(_spans(cell, style), max(width - indent, 1), Column(""))
    return [((" " * indent, ""), *piece) if indent else piece for piece in pieces]


def _pieces(cell: Line, width: int, column: Column) -> list[Line]:
    """*cell* broken into lines of *width* cells as *column* allows."""
    text = _text(cell)
    if "\n" in text:
        return [piece for line in _split(cell) for piece in _pieces(line, width, column)]
    if cells(text) <= width:
        return [cell]
    if column.path and text.startswith(("/", "…")):
        kept = text
        while cells(kept) > width - 1:
            kept = kept[1:]
        return [(("…" + kept, cell[-1][1]),)]
    texts = wrap(text, width)
    if column.lines and len(texts) > column.lines:
        rest = text[text.rfind(texts[column.lines - 1]) :] if column.lines == 1 else ""
        last = rest or " ".join(texts[column.lines - 1 :])
        texts = [*texts[: column.lines - 1], clip(last, width)]
    found: list[Line] = []
    at = 0
    for piece in texts:
        bare = piece.removesuffix("…")
        at = max(text.find(bare, at), 0)
        found.append((*_cut(cell, at, at + len(bare)), (piece[len(bare) :], cell[-1][1])))
        at += len(bare)
    return found


def _split(cell: Line) -> Iterator[Line]:
    """The lines of a cell that has several of its own."""
    at = 0
    for line in _text(cell).split("\n"):
        yield tuple(_cut(cell, at, at + len(line))) or (("", ""),)
        at += len(line) + 1


def _cut(cell: Line, start: int, end: int) -> Iterator[Span]:
    """The spans of *cell* between two positions of its text."""
    at = 0
    for text, style in cell:
        piece = text[max(start - at, 0) : max(end - at, 0)]
        if piece:
            yield piece, style
        at += len(text)


# --- drawing -------------------------------------------------------------------------------


def _drawn(
    columns: Sequence[Column], rows: Sequence[Row], grid: _Grid, heads: bool
) -> Iterator[list[Line]]:
    """The lines of the titles, then those of each row."""
    table = _empty(columns, grid, heads)
    heights = [1] if heads else []
    for row in rows:
        pieces = []
        for at, width in zip(grid.columns, grid.widths, strict=True):
            column, cell = columns[at], row.cells[at]
            if at in grid.above and _goes_above(column, cell, True):
                cell = ""
            pieces.append(_pieces(_spans(cell, row.style), width, column))
        heights.append(max(map(len, pieces)))
        table.add_row(*map(_as_text, pieces))
    lines = _rendered(table, sum(grid.widths) + GAP * len(grid.widths))
    at = 0
    for height in heights:
        yield lines[at : at + height]
        at += height


def _empty(columns: Sequence[Column], grid: _Grid, heads: bool) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=heads)
    for at, width in zip(grid.columns, grid.widths, strict=True):
        column = columns[at]
        table.add_column(
            _as_text([((column.title, "dim"),)]),
            justify="right" if column.right else "left",
            width=width,
            no_wrap=True,
            overflow="crop",
        )
    return table


def _as_text(pieces: Sequence[Line]) -> Text:
    from rich.text import Text

    text = Text()
    for number, piece in enumerate(pieces):
        if number:
            text.append("\n")
        for part, style in piece:
            text.append(part, _styles()[style] if style else None)
    return text


@lru_cache(maxsize=1)
def _styles() -> dict[str, Style]:
    """A style of rich for each word of ours; each carries its word, so that none equals another."""
    from rich.style import Style

    return {word: Style.from_meta({"word": word}) for word in STYLES if word}


def _rendered(table: Table, width: int) -> list[Line]:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    words: dict[Any, str] = {style: word for word, style in _styles().items()}
    lines: list[Line] = []
    for segments in console.render_lines(table, pad=False):
        spans: list[Span] = []
        for text, style, _ in segments:
            word = words.get(style, "")
            if spans and spans[-1][1] == word:
                spans[-1] = (spans[-1][0] + text, word)
            else:
                spans.append((text, word))
        while spans and not spans[-1][0].strip():
            spans.pop()
        if spans:
            spans[-1] = (spans[-1][0].rstrip(), spans[-1][1])
        lines.append(tuple(spans))
    return lines
