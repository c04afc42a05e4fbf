"""Where the answer goes: stdout or ``--to FILE``, as lines or as data. Notes go to stderr.

A reader that goes away (``| head``) never ends a run: what it would have read is dropped.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleetmem.controller.answer.envelope import Envelope
from fleetmem.controller.cli.kit.flags import PICTURE, WIDE, Common
from fleetmem.controller.cli.kit.stdout import lose, put
from fleetmem.controller.errors import UsageError
from fleetmem.controller.render.kit.csv_text import csv_text
from fleetmem.controller.render.kit.data import to_csv, to_json, to_jsonl
from fleetmem.controller.render.kit.line import WIDTH, Line
from fleetmem.controller.render.kit.paint import paint, wants_colour
from fleetmem.controller.render.kit.signs import to_ascii, wants_ascii
from fleetmem.controller.text.safe import safe

LEAST_WIDTH = 40


class Screen:
    """The output of one command. ``table`` says whether people read it, ``picture``
    whether they look at it."""

    def __init__(self, common: Common) -> None:
        self.table = common.output in ("table", WIDE)
        self.picture = common.output == PICTURE
        self._output = common.output
        self._quiet = common.quiet
        self._target = common.to if common.to not in (None, "-") else None
        self._temporary = _temporary(self._target) if self._target else None
        self._kept: list[str] = []
        self._gone = False

    @property
    def watched(self) -> bool:
        """Whether lines on stdout are seen at once by somebody at a terminal."""
        return self.on_stdout and sys.stdout.isatty()

    @property
    def width(self) -> int:
        """Columns for lines of the answer: the terminal's, or COLUMNS where there is none."""
        if not self.watched and not os.environ.get("COLUMNS", "").isdigit():
            return WIDTH
        return max(LEAST_WIDTH, shutil.get_terminal_size().columns)

    @property
    def on_stdout(self) -> bool:
        """Whether lines of the answer go to stdout, whoever reads it."""
        return self.table and self._target is None

    def lines(self, lines: Sequence[Line]) -> None:
        """Part of the answer for people; nothing where the answer is data."""
        if self.table:
            colour = self._target is None and wants_colour(sys.stdout)
            text = paint(lines, colour)
            plain = self._target is None and wants_ascii(sys.stdout)
            self._write(to_ascii(text) if plain else text)

    def aside(self, lines: Sequence[Line]) -> None:
        """Lines that a person must see even where the answer goes elsewhere."""
        text = paint(lines, wants_colour(sys.stderr))
        self._error(to_ascii(text) if wants_ascii(sys.stderr) else text)

    def note(self, text: str) -> None:
        """One line beside the answer; ``-q`` silences it."""
        if not self._quiet:
            self._error(safe(text) + "\n")

    def drawn(self, document: str) -> None:
        """The answer as a picture."""
        self._write(document)

    def data(self, envelope: Envelope) -> None:
        """The answer for programs; nothing where it is for people."""
        formats: dict[str, Callable[[Envelope], str]] = {
            "json": to_json,
            "jsonl": to_jsonl,
            "csv": to_csv,
        }
        if not self.table:
            self._write(formats[self._output](envelope))

    def rows(self, envelope: Envelope, rows: Sequence[Mapping[str, Any]]) -> None:
        """An answer that is a list of flat rows: in the envelope, a line each, or csv."""
        if self._output == "json":
            self.data(envelope)
        elif self._output == "jsonl":
            self._write("".join(json.dumps(row) + "\n" for row in rows))
        elif self._output == "csv":
            self._write(csv_text(rows))

    def close(self) -> None:
        """Put the file of ``--to`` in its place, whole; UsageError where that fails."""
        if self._temporary is None or self._target is None:
            return
        try:
            with open(self._temporary, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(self._kept)
            os.replace(self._temporary, self._target)
        except OSError as error:
            self.discard()
            raise UsageError(f"--to {self._target}: {error.strerror}") from None
        self._temporary = None

    def discard(self) -> None:
        """Leave no half-written file behind."""
        if self._temporary is not None:
            _remove(self._temporary)
        self._temporary = None

    def _write(self, text: str) -> None:
        if self._target is not None:
            self._kept.append(text)
            return
        if self._gone:
            return
        try:
            put(text)
        except BrokenPipeError:
            self._gone = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:  # a full disk: the run goes on, its status tells
            self._gone = True
            lose(error)

    def _error(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:  # nobody reads it; the run goes on
            pass


def _temporary(target: str) -> str:
    """A file beside *target*, made before anything is done so that a bad path ends it here."""
    if os.path.isdir(target):
        raise UsageError(f"--to {target}: is a directory")
    if os.path.exists(target) and not os.path.isfile(target):
        raise UsageError(f"--to {target}: is not a regular file")
    try:
        folder = os.path.dirname(target) or "."
        handle, path = tempfile.mkstemp(prefix=".fleetmem-", dir=folder)
        os.close(handle)
    except OSError as error:
        raise UsageError(f"--to {target}: {error.strerror}") from None
    return path


def _remove(path: str) -> None:
    """Remove *path* if it is there."""
    try:
        os.unlink(path)
    except OSError:
        pass
