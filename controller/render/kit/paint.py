"""Lines to text: with colour where a person at a terminal wants it, else plain.

``NO_COLOR`` (not empty) always wins, then ``FORCE_COLOR``, then whether the stream is a
terminal that is not dumb. Remote text reaches rich as text objects only, never as markup.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TextIO

from fleetmem.controller.render.kit.line import STYLES, Line, plain


def wants_colour(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether *stream* gets colour."""
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return is_terminal(stream, environ)


def is_terminal(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether *stream* is a terminal on which the cursor can be moved."""
    try:
        return stream.isatty() and environ.get("TERM", "") not in ("", "dumb")
    except ValueError:  # the stream is closed
        return False


def paint(lines: Iterable[Line], colour: bool) -> str:
    """*lines* as text that ends in a newline; empty for no lines."""
    if not colour:
        return "".join(plain(line) + "\n" for line in lines)
    import io

    from rich.console import Console
    from rich.text import Text

    console = Console(
        file=io.StringIO(),
        force_terminal=True,
        color_system="standard",
        no_color=False,
        highlight=False,
        markup=False,
        emoji=False,
        width=10_000,
        legacy_windows=False,
    )
    with console.capture() as captured:
        for line in lines:
            text = Text(end="\n")
            for piece, style in line:
                text.append(piece, STYLES[style] or None)
            text.rstrip()
            console.print(text, soft_wrap=True)
    return captured.get()
